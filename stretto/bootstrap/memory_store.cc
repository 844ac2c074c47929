// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/memory_store.h"

#include <condition_variable>

#include "stretto/base/mutex.h"
#include "stretto/bootstrap/store_contents.h"

namespace stretto::bootstrap {

struct MemoryStore::State {
  Mutex mutex;
  std::condition_variable changed;
  StoreContents contents STRETTO_GUARDED_BY(mutex);
};

MemoryStore::MemoryStore() : state_(std::make_unique<State>()) {}
MemoryStore::~MemoryStore() = default;

Result<StoreReply> MemoryStore::answer(const StoreRequest& request, const WaitLimit& limit) {
  State& state = *state_;
  MutexLock lock(state.mutex);
  while (true) {
    const std::uint64_t before = state.contents.revision();
    Result<std::optional<StoreReply>> reply = state.contents.answer(request);
    if (!reply.ok()) return reply.status();
    if (state.contents.revision() != before) state.changed.notify_all();
    if (*reply) return std::move(**reply);
    if (limit.passed()) return status_of(StatusCode::timeout, "nobody has set it in time");
    lock.unlock();
    STRETTO_RETURN_IF_ERROR(limit.look());
    lock.lock();
    if (state.contents.revision() != before) continue;
    // An hour at most: the end of time would overflow inside the system's call.
    state.changed.wait_for(lock.native(), std::min<Duration>(limit.nap(), std::chrono::hours(1)));
  }
}

}  // namespace stretto::bootstrap
