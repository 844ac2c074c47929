// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/types.h>

#include <vector>

namespace stretto::launch {

// For a process that is a subreaper (PR_SET_CHILD_SUBREAPER): whatever its descendants leave behind
// becomes its child, in whichever group or session it is.

// Kills all descendants, and what they start meanwhile. Returns when none is left that this process
// may kill; who has another user's rights stays.
void kill_descendants();

// Reaps the children that have ended, but these.
void reap_children_except(const std::vector<pid_t>& kept);

}  // namespace stretto::launch
