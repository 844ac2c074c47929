// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/sourced.h"

#include <charconv>
#include <cmath>

namespace stretto::job {
namespace {

// Thirty years: what a Duration can hold, and nobody means.
constexpr double kSecondsMax = 1e9;

}  // namespace

MaybeSourced<std::string> read_text(const Environment& environment, const std::string& variable) {
  const auto text = environment.get(variable);
  if (!text) return std::nullopt;
  return Sourced<std::string>{*text, variable};
}

Result<MaybeSourced<int>> read_number(const Environment& environment, const std::string& variable) {
  const auto text = environment.get(variable);
  if (!text) return MaybeSourced<int>();
  int number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || end != text->data() + text->size()) {
    return status_of(StatusCode::invalid_argument, "{}=\"{}\" is not a whole number{}", variable,
                     *text, error == std::errc::result_out_of_range ? " that fits" : "");
  }
  return MaybeSourced<int>({number, variable});
}

Result<MaybeSourced<double>> read_seconds(const Environment& environment,
                                          const std::string& variable) {
  const auto text = environment.get(variable);
  if (!text) return MaybeSourced<double>();
  double number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  const bool is_number = error == std::errc() && end == text->data() + text->size();
  if (is_number && number >= 0 && number <= kSecondsMax) {
    return MaybeSourced<double>({number, variable});
  }
  return status_of(StatusCode::invalid_argument, "{}=\"{}\" {}: want seconds, such as 2 or 2.5",
                   variable, *text,
                   !is_number || std::isnan(number) ? "is not a number"
                   : number < 0                     ? "is negative"
                                                    : "is too large");
}

}  // namespace stretto::job
