// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <utility>

#include "stretto/base/error.h"

namespace stretto::ddp {

// Text is put together without fmt in this layer: libtorch's folder of headers has another version
// of it, which comes first and whose compiled part nobody links.
[[noreturn]] inline void refuse(std::string text) {
  throw InvalidArgument(Status(StatusCode::invalid_argument, std::move(text)));
}

// Numbers, as PyTorch joins them.
template <class Numbers>
std::string joined(const Numbers& numbers, const char* separator = ", ") {
  std::string text;
  for (const auto number : numbers) {
    text += (text.empty() ? "" : separator) + std::to_string(number);
  }
  return text;
}

}  // namespace stretto::ddp
