// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/sourced.h"

#include <charconv>

namespace stretto::job {

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
    return status_of(StatusCode::invalid_argument, "{}=\"{}\" is not a number", variable, *text);
  }
  return MaybeSourced<int>({number, variable});
}

}  // namespace stretto::job
