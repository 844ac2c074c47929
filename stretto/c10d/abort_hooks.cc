// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/c10d/abort_hooks.h"

#include <utility>
#include <vector>

#include "stretto/base/catch_all.h"
#include "stretto/base/log.h"

namespace stretto::c10d_backend {

void AbortHooks::set(int64_t number, AbortHook hook) {
  auto held = std::make_shared<const AbortHook>(std::move(hook));
  const MutexLock guard(mutex_);
  hooks_[number].swap(held);  // The old hook is destroyed without the lock.
}

void AbortHooks::remove(int64_t number) {
  std::shared_ptr<const AbortHook> removed;
  const MutexLock guard(mutex_);
  const auto found = hooks_.find(number);
  if (found == hooks_.end()) return;
  removed = std::move(found->second);
  hooks_.erase(found);
}

void AbortHooks::call() const {
  std::vector<std::shared_ptr<const AbortHook>> due;
  {
    const MutexLock guard(mutex_);
    for (const auto& [number, hook] : hooks_) due.push_back(hook);
  }
  for (const auto& hook : due) {
    catch_all([&] { (*hook)(); },
              [](const char* what) { log(LogLevel::error, "an abort hook threw: {}", what); });
  }
}

}  // namespace stretto::c10d_backend
