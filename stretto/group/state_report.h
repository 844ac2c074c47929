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

// A rank's answer to the inquiry of another rank that waits in an operation.
struct StateReport {
  bool has_entered = false;          // The operation in question.
  std::vector<Rank> waits_for = {};  // Ranks of the job, at most 16. Empty: it waits for none.
  std::string text = {};             // Goes on after "which": "is in barrier() #3".
};

// The form in which it travels: "+1,2 is in barrier() #3".
std::string encode(const StateReport& report);
// Nothing if no correct peer sends such a text.
std::optional<StateReport> decode_state_report(std::string_view text);

// "in its own code: loading data", with the program's note `activity`, if it is not empty.
std::string in_own_code(std::string_view activity);
// "rank 3"; "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 56 more".
std::string list_ranks(std::span<const Rank> ranks);

}  // namespace stretto::group
