// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <functional>

#include "stretto/base/status.h"
#include "stretto/communicator/communicator.h"
#include "stretto/communicator/link_probe.h"
#include "stretto/group/link_model.h"

namespace stretto::communicator {

// Makes a communicator choose its next operations by the given numbers. Called on all ranks between
// the same operations.
using ChooseBy = std::function<void(const group::MemoryModel&)>;

// Whether two measurements are similar: `moved` and the private sizes differ by at most a factor of
// 2, the step between tried sizes; `reduced` and `takes_lines` are equal.
bool are_alike(const group::MemoryModel& a, const group::MemoryModel& b);

// Finds out whether it pays to take cache lines of mapped memory (take_lines()), and up to how many
// bytes one sync is faster than two. Runs both ways on this machine with this number of ranks, or
// uses a stored measurement of an earlier job. Sets `model.memory` and `model.source`, equal on all
// ranks. Collective on `world`, whose ranks must have mapped each other's memory and have a core
// each. Afterwards `world` still chooses by the numbers that were tried last. Blocks; a measurement
// takes some tens of milliseconds. Fails like an operation of `world`, and leaves `model` unchanged
// then.
Status agree_on_memory(Communicator& world, const LinkCacheOptions& cache,
                       const ChooseBy& choose_by, group::LinkModel& model);

}  // namespace stretto::communicator
