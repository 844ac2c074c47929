// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/sourced.h"

#include <cmath>

#include "stretto/base/parse_number.h"

namespace stretto::job {
namespace {

// Thirty years: a Duration can hold it, and nobody wants to wait longer.
constexpr double kSecondsMax = 1e9;

}  // namespace

MaybeSourced<std::string> read_text(const Environment& environment, const std::string& variable) {
  const auto text = environment.get(variable);
  if (!text) return std::nullopt;
  return Sourced<std::string>{*text, variable};
}

std::string read_text(const Environment& environment, const std::string& variable,
                      std::string_view what, Sources& sources) {
  const auto text = read_text(environment, variable);
  if (!text) return {};
  sources.note(what, *text);
  return text->value;
}

Result<MaybeSourced<int>> read_number(const Environment& environment, const std::string& variable) {
  const auto text = environment.get(variable);
  if (!text) return MaybeSourced<int>();
  if (const std::optional<int> number = parse_number<int>(*text)) {
    return MaybeSourced<int>({*number, variable});
  }
  return status_of(StatusCode::invalid_argument, "{}=\"{}\" is not a whole number{}", variable,
                   *text, parse_number<double>(*text) ? " that fits" : "");
}

Result<MaybeSourced<double>> read_seconds(const Environment& environment,
                                          const std::string& variable) {
  const auto text = environment.get(variable);
  if (!text) return MaybeSourced<double>();
  const std::optional<double> number = parse_number<double>(*text);
  if (number && *number >= 0 && *number <= kSecondsMax) {
    return MaybeSourced<double>({*number, variable});
  }
  return status_of(StatusCode::invalid_argument, "{}=\"{}\" {}: want seconds, such as 2 or 2.5",
                   variable, *text,
                   !number || std::isnan(*number) ? "is not a number"
                   : *number < 0                  ? "is negative"
                                                  : "is too large");
}

}  // namespace stretto::job
