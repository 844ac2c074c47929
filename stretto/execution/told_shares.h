// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/execution/execution.h"
#include "stretto/execution/plan.h"
#include "stretto/execution/window.h"

namespace stretto::execution {

// The mismatch of two ranks of the job that disagree on a count of an all_to_all whose counts only
// pairs of ranks know.
Status counts_differ(Rank sender, std::size_t sent, Rank receiver, std::size_t expected);

// If ranks have mapped each other's windows, each writes its counts, those of its plan, to the
// staging of its own window before it posts, and reads those of all ranks when all have posted.
void tell_shares(const Plan& plan, std::byte* staging);
// Fails on all ranks: with mismatch if two of them disagree, with protocol if a count is
// impossible.
Result<Shares> read_shares(const Windows& windows, const Membership& membership);

}  // namespace stretto::execution
