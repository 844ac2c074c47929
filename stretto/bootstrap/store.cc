// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/store.h"

namespace stretto::bootstrap {

Status check_store_limits(std::string_view key, std::string_view value) {
  if (key.empty() || key.size() > kMaxKeyBytes) {
    return status_of(StatusCode::invalid_argument, "a key of the store has 1 to {} bytes, not {}",
                     kMaxKeyBytes, key.size());
  }
  if (value.size() > kMaxValueBytes) {
    return status_of(StatusCode::invalid_argument,
                     "a value of the store has at most {} bytes, not {} (key \"{}\")",
                     kMaxValueBytes, value.size(), key);
  }
  return {};
}

}  // namespace stretto::bootstrap
