// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/sourced.h"

#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>

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

Result<Sourced<std::string>> read_choice(const Environment& environment,
                                         const std::string& variable, std::string_view what,
                                         std::span<const std::string_view> choices,
                                         Sources& sources, const std::string& option) {
  MaybeSourced<std::string> from_options;
  if (!option.empty()) from_options = {option, fmt::format("option {}", what)};
  STRETTO_ASSIGN_OR_RETURN(const auto given, agree(from_options, read_text(environment, variable)));
  if (!given) {
    sources.by_default(what, choices.front());
    return Sourced<std::string>{std::string(choices.front()), ""};
  }
  if (std::ranges::find(choices, given->value) == choices.end()) {
    return status_of(StatusCode::invalid_argument, "{}=\"{}\" is not one of {}", given->source,
                     given->value, fmt::join(choices, ", "));
  }
  sources.note(what, *given);
  return *given;
}

}  // namespace stretto::job
