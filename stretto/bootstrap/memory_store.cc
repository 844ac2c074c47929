// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/memory_store.h"

#include <condition_variable>
#include <mutex>

#include "stretto/bootstrap/store_contents.h"

namespace stretto::bootstrap {

struct MemoryStore::State {
  std::mutex mutex;
  std::condition_variable changed;
  StoreContents contents;
};

MemoryStore::MemoryStore() : state_(std::make_unique<State>()) {}
MemoryStore::~MemoryStore() = default;

Result<StoreReply> MemoryStore::answer(const StoreRequest& request, const WaitLimit& limit) {
  auto& [mutex, changed, contents] = *state_;
  std::unique_lock lock(mutex);
  while (true) {
    const std::uint64_t before = contents.revision();
    Result<std::optional<StoreReply>> reply = contents.answer(request);
    if (!reply.ok()) return reply.status();
    if (contents.revision() != before) changed.notify_all();
    if (*reply) return std::move(**reply);
    if (limit.passed()) return status_of(StatusCode::timeout, "nobody has set it in time");
    lock.unlock();
    STRETTO_RETURN_IF_ERROR(limit.look());
    lock.lock();
    if (contents.revision() != before) continue;
    // An hour at most: the end of time would overflow inside the system's call.
    changed.wait_for(lock, std::min<Duration>(limit.nap(), std::chrono::hours(1)));
  }
}

}  // namespace stretto::bootstrap
