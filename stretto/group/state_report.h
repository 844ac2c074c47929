// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/id.h"

namespace stretto::group {

// What a rank answers when another, which waits in an operation, asks where it is.
struct StateReport {
  bool has_entered = false;          // The operation that it was asked about.
  std::vector<Rank> waits_for = {};  // In the job; of many, the first few. Empty: for nobody.
  std::string text = {};             // Behind "which": "is in barrier() #3".
};

// "+1,2 is in barrier() #3": as it travels.
std::string encode(const StateReport& report);
// Nothing if no correct peer says so.
std::optional<StateReport> decode_state_report(std::string_view text);

// "in its own code: loading data", as the program says.
std::string in_own_code(std::string_view activity);
// "rank 3"; "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 56 more".
std::string list_ranks(std::span<const Rank> ranks);

}  // namespace stretto::group
