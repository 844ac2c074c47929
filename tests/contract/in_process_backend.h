// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <vector>

#include "stretto/communicator/communicator.h"

namespace stretto::testing {

// Communicators on a Backend without schedules, transport or threads: whichever rank comes last to
// a collective computes it for all, and whoever comes second to a message copies it. It shows that
// the Backend is a seam, by passing those tests of the contract that ask what is computed.
std::vector<std::unique_ptr<Communicator>> make_in_process_ranks(int size);

}  // namespace stretto::testing
