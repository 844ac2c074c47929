// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/memory_store.h"

namespace stretto::bootstrap {

Result<StoreReply> MemoryStore::answer(const StoreRequest& request, const WaitLimit& limit) {
  std::unique_lock lock(mutex_);
  while (true) {
    const std::uint64_t before = contents_.revision();
    Result<std::optional<StoreReply>> reply = contents_.answer(request);
    if (!reply.ok()) return reply.status();
    if (contents_.revision() != before) changed_.notify_all();
    if (*reply) return std::move(**reply);
    if (limit.passed()) return status_of(StatusCode::timeout, "nobody has set it in time");
    lock.unlock();
    STRETTO_RETURN_IF_ERROR(limit.look());
    lock.lock();
    if (contents_.revision() != before) continue;
    // An hour at most: the end of time would overflow inside the system's call.
    changed_.wait_for(lock, std::min<Duration>(limit.nap(), std::chrono::hours(1)));
  }
}

}  // namespace stretto::bootstrap
