// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/check.h"

#include "stretto/base/error.h"

namespace stretto::detail {

void check_failed(const char* expression, const char* file, int line, const std::string& details) {
  throw InternalError(status_of(StatusCode::internal,
                                "bug in stretto: {} does not hold ({}) at {}:{}", expression,
                                details, file, line));
}

}  // namespace stretto::detail
