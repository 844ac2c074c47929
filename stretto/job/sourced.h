// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "stretto/base/clock.h"
#include "stretto/base/environment.h"
#include "stretto/base/status.h"

namespace stretto::job {

// A value and its source: "STRETTO_RANK", "option rank".
template <class T>
struct Sourced {
  T value;
  std::string source;
};

template <class T>
using MaybeSourced = std::optional<Sourced<T>>;

// `first` where it is present, else `second`; invalid_argument if they contradict each other.
template <class T>
Result<MaybeSourced<T>> agree(const MaybeSourced<T>& first, const MaybeSourced<T>& second) {
  if (first && second && first->value != second->value) {
    return status_of(StatusCode::invalid_argument,
                     "{} says {}, but {} says {}: unset one of them, or make them equal",
                     first->source, first->value, second->source, second->value);
  }
  return first ? first : second;
}

// The settings that have been resolved, as text for the log.
class Sources {
 public:
  // "rank 3 from STRETTO_RANK".
  template <class T>
  void note(std::string_view what, const Sourced<T>& value) {
    add(fmt::format("{} {} from {}", what, value.value, value.source));
  }
  void add(std::string_view line) { lines_ += fmt::format("{}\n", line); }
  // Adds a default that nobody has overridden.
  template <class T>
  void by_default(std::string_view what, const T& value) {
    defaults_ += fmt::format("{}{} {}", defaults_.empty() ? "by default: " : ", ", what, value);
  }

  // A line for each value that somebody has set, and one for all others.
  std::string text() const { return lines_ + (defaults_.empty() ? "" : defaults_ + "\n"); }

 private:
  std::string lines_;
  std::string defaults_;
};

inline Duration to_duration(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

// The value of `variable`, or nothing if it is not set: its text, a whole number, or seconds, which
// may have a fraction and are not negative. Fails with invalid_argument if it is no such number.
MaybeSourced<std::string> read_text(const Environment& environment, const std::string& variable);
// The text of `variable`, empty if it is not set. Notes a value that is set in `sources`, as
// `what`.
std::string read_text(const Environment& environment, const std::string& variable,
                      std::string_view what, Sources& sources);
Result<MaybeSourced<int>> read_number(const Environment& environment, const std::string& variable);
Result<MaybeSourced<double>> read_seconds(const Environment& environment,
                                          const std::string& variable);
// What `option`, unless it is empty, or `variable` says, and notes it in `sources`, as `what`.
// Fails with invalid_argument if they contradict each other or say none of `choices`. The first of
// these if neither says anything.
Result<Sourced<std::string>> read_choice(const Environment& environment,
                                         const std::string& variable, std::string_view what,
                                         std::span<const std::string_view> choices,
                                         Sources& sources, const std::string& option = {});

}  // namespace stretto::job
