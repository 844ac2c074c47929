// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/memory_store.h"

namespace stretto::bootstrap {

Result<StoreReply> MemoryStore::answer(const StoreRequest& request, Deadline deadline) {
  std::unique_lock lock(mutex_);
  while (true) {
    const std::uint64_t before = contents_.revision();
    Result<std::optional<StoreReply>> reply = contents_.answer(request);
    if (!reply.ok()) return reply.status();
    if (contents_.revision() != before) changed_.notify_all();
    if (*reply) return std::move(**reply);
    if (deadline.passed()) return status_of(StatusCode::timeout, "nobody has set it in time");
    // The clock cannot wait until the end of time: that would overflow inside the system's call.
    if (deadline.time() == TimePoint::max()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, deadline.time());
    }
  }
}

}  // namespace stretto::bootstrap
