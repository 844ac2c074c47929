// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/execution/execution.h"
#include "stretto/execution/plan.h"
#include "stretto/execution/window.h"

namespace stretto::execution {

// Of an all_to_all whose counts only pairs of ranks know: two of whom disagree. Ranks of the job.
Status counts_differ(Rank sender, std::size_t sent, Rank receiver, std::size_t expected);

// Where ranks have mapped each other's windows, each writes its counts, those of its plan, to the
// staging of its own before it posts, and reads those of all when all have posted.
void tell_shares(const Plan& plan, std::byte* staging);
// Fails with mismatch, on all ranks, if two of them disagree.
Result<Shares> read_shares(const Windows& windows, const Membership& membership);

}  // namespace stretto::execution
