// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <utility>

#include "stretto/base/error.h"

namespace stretto {

// Throws InvalidArgument with a formatted text.
template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) {
  throw InvalidArgument(status_of(StatusCode::invalid_argument, text, std::forward<Args>(args)...));
}

}  // namespace stretto
