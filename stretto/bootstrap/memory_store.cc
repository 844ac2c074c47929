// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/memory_store.h"

#include <condition_variable>

#include "stretto/base/mutex.h"
#include "stretto/base/wait_until.h"
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
    STRETTO_ASSIGN_OR_RETURN(std::optional<StoreReply> reply, state.contents.answer(request));
    if (state.contents.revision() != before) state.changed.notify_all();
    if (reply) return std::move(*reply);
    STRETTO_ASSIGN_OR_RETURN(
        const bool has_changed,
        wait_until(state.changed, lock, limit, [&]() STRETTO_REQUIRES(state.mutex) {
          return state.contents.revision() != before;
        }));
    if (!has_changed) return status_of(StatusCode::timeout, "nobody has set it in time");
  }
}

}  // namespace stretto::bootstrap
