// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>
#include <string>

#include "stretto/base/clock.h"
#include "stretto/base/environment.h"
#include "stretto/base/status.h"

namespace stretto::job {

// A value and where it came from: "STRETTO_RANK", "option rank".
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

inline Duration to_duration(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

// The variable's text, or its number (invalid_argument if it is none): a whole one, or seconds with
// or without a fraction, not negative.
MaybeSourced<std::string> read_text(const Environment& environment, const std::string& variable);
Result<MaybeSourced<int>> read_number(const Environment& environment, const std::string& variable);
Result<MaybeSourced<double>> read_seconds(const Environment& environment,
                                          const std::string& variable);

}  // namespace stretto::job
