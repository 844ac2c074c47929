// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/memory_store.h"

namespace stretto::bootstrap {

Status MemoryStore::set(std::string_view key, std::string_view value, Deadline /*deadline*/) {
  STRETTO_RETURN_IF_ERROR(check_store_limits(key, value));
  const std::lock_guard lock(mutex_);
  values_.insert_or_assign(std::string(key), std::string(value));
  changed_.notify_all();
  return {};
}

Result<std::string> MemoryStore::get(std::string_view key, Deadline deadline) {
  STRETTO_RETURN_IF_ERROR(check_store_limits(key, {}));
  std::unique_lock lock(mutex_);
  const auto present = [&] { return values_.find(key) != values_.end(); };
  // The clock cannot wait until the end of time: that would overflow inside the system's call.
  if (deadline.time() == TimePoint::max()) {
    changed_.wait(lock, present);
  } else if (!changed_.wait_until(lock, deadline.time(), present)) {
    return status_of(StatusCode::timeout, "nobody has set \"{}\" in the {}", key, describe());
  }
  return values_.find(key)->second;
}

}  // namespace stretto::bootstrap
