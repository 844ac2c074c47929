// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "stretto/base/clock.h"
#include "stretto/base/status.h"

namespace stretto::bootstrap {

inline constexpr std::size_t kMaxKeyBytes = 256;
inline constexpr std::size_t kMaxValueBytes = 64 * 1024;

// Where ranks leave notes for each other before they are connected: a map from keys to bytes that
// all ranks of a job see. Implementations: a client of the launcher's server (tcp_store.h), a
// client of torchrun's server (torch_store.h), and a map in this process (memory_store.h).
//
// Thread safe. Every call blocks for at most its deadline and then fails with timeout.
class Store {
 public:
  virtual ~Store() = default;
  // Replaces what was there. Limits: keys 1 to kMaxKeyBytes, values up to kMaxValueBytes
  // (invalid_argument).
  virtual Status set(std::string_view key, std::string_view value, Deadline deadline) = 0;
  // Waits until somebody has set the key.
  virtual Result<std::string> get(std::string_view key, Deadline deadline) = 0;
  // Where it is, for error messages: "launcher at 10.0.4.7:29500".
  virtual std::string describe() const = 0;
};

// Whether a store may be asked for `key`, and take `value`.
Status check_store_limits(std::string_view key, std::string_view value);

}  // namespace stretto::bootstrap
