// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/id.h"
#include "stretto/base/operation.h"

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

// What a rank has asked others, when it began to, and what they have answered so far.
struct Inquiry {
  std::uint32_t sequence = 0;
  OperationDescriptor operation = {};
  TimePoint at = TimePoint::min();
  std::vector<std::optional<StateReport>> answers = {};  // Per member of the group.
};

// For whom an operation waits, and who in the job is at fault, if it is one.
struct Late {
  std::vector<Rank> ranks = {};
  std::optional<Rank> culprit = std::nullopt;
};

// "rank 3"; "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 56 more".
std::string list_ranks(std::span<const Rank> ranks);

}  // namespace stretto::group
