// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/state_report.h"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include "stretto/base/parse_number.h"

namespace stretto::group {
namespace {

constexpr std::size_t kListedMax = 8;
// This many ranks leave most of a report to its text.
constexpr std::size_t kWaitsForMax = 16;

}  // namespace

std::string encode(const StateReport& report) {
  std::string ranks;
  for (std::size_t i = 0; i < std::min(report.waits_for.size(), kWaitsForMax); ++i) {
    ranks += fmt::format("{}{}", i == 0 ? "" : ",", report.waits_for[i].value());
  }
  return fmt::format("{}{} {}", report.has_entered ? '+' : '-', ranks, report.text);
}

std::optional<StateReport> decode_state_report(std::string_view text) {
  const std::size_t space = text.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == text.size()) return {};
  if (text.front() != '+' && text.front() != '-') return {};
  StateReport report{.has_entered = text.front() == '+',
                     .waits_for = {},
                     .text = std::string(text.substr(space + 1))};
  for (std::string_view ranks = text.substr(1, space - 1); !ranks.empty();) {
    const auto rank = take_number<std::int32_t>(ranks);
    if (!rank || *rank < 0 || (!ranks.empty() && ranks.front() != ',')) return {};
    report.waits_for.push_back(*rank);
    ranks.remove_prefix(std::min<std::size_t>(1, ranks.size()));
  }
  return report;
}

std::string in_own_code(std::string_view activity) {
  return activity.empty() ? "in its own code" : fmt::format("in its own code: {}", activity);
}

std::string list_ranks(std::span<const Rank> ranks) {
  std::string list = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kListedMax); ++i) {
    list += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i].value());
  }
  if (ranks.size() > kListedMax) list += fmt::format(" and {} more", ranks.size() - kListedMax);
  return list;
}

}  // namespace stretto::group
