// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/rank_notes.h"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

#include "stretto/base/log.h"

namespace stretto::bootstrap {
namespace {

// For one look at who is missing, which comes after the deadline.
constexpr Duration kLook = std::chrono::milliseconds(500);

std::string key_of(const std::string& name, int rank) { return fmt::format("{}/{}", name, rank); }

}  // namespace

Result<std::string> RankNotes::get(const std::string& name, int rank) const {
  while (true) {
    const Deadline turn(std::min(deadline_.time(), Deadline::after(reminder_).time()));
    Result<std::string> value = store_.get(key_of(name, rank), turn);
    if (value.ok() || value.status().code() != StatusCode::timeout) return value;
    const std::string missing = describe_missing(name, rank);
    if (deadline_.passed()) return Status(StatusCode::timeout, "waited " + missing);
    log(LogLevel::warning, "waiting {}", missing);
  }
}

// M5 of the error texts: who is missing, where they were to come, how long we have waited.
std::string RankNotes::describe_missing(const std::string& name, int rank) const {
  const double waited = seconds(Clock::now() - start_);
  const bool ends = deadline_.time() != TimePoint::max();
  const std::string limit = ends ? fmt::format("/{:.0f}", seconds(deadline_.time() - start_)) : "";
  std::vector<int> missing;
  const Deadline look = Deadline::after(kLook);
  for (int r = 0; r < size_; ++r) {
    const std::array key = {key_of(name, r)};
    const Result<bool> there = store_.check(key, look);
    // A store that does not answer says nothing about the ranks.
    if (!there.ok() && r != rank) continue;
    if (r == rank || !there.value()) missing.push_back(r);
  }
  return fmt::format(
      "{:.0f}{} s for {} of {} ranks: {} never came. All meet in {}, which their hosts must be "
      "able to reach",
      waited, limit, missing.size(), size_, fmt::join(missing, ", "), store_.describe());
}

}  // namespace stretto::bootstrap
