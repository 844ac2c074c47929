// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <functional>

#include "stretto/base/status.h"
#include "stretto/communicator/communicator.h"
#include "stretto/communicator/link_probe.h"
#include "stretto/group/link_model.h"

namespace stretto::communicator {

// Lets the operations of a communicator that follow be chosen by these numbers. On all ranks
// between the same operations.
using ChooseBy = std::function<void(const group::MemoryModel&)>;

// Whether two measurements differ by one step of the sizes that are tried, at most, and in what is
// reduced and in whether lines are taken by none.
bool are_alike(const group::MemoryModel& a, const group::MemoryModel& b);

// Finds out whether it pays to take lines of mapped memory, and up to how many bytes one sync is
// quicker than two, by running both: of this machine and this number of ranks, or remembered
// from an earlier job; agreed by all ranks. Puts it into `model`, which says where it comes from.
// Collective on `world`, whose ranks must have mapped each other's memory and have a core each; it
// goes by what was tried last afterwards. Blocks: for some tens of milliseconds where it measures.
// Fails as an operation of `world` does; `model` is then as before.
Status agree_on_memory(Communicator& world, const LinkCacheOptions& cache,
                       const ChooseBy& choose_by, group::LinkModel& model);

}  // namespace stretto::communicator
