// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/c10d/driver.h"

#include <utility>

#include "stretto/base/catch_all.h"
#include "stretto/base/log.h"
#include "stretto/base/thread.h"
#include "stretto/c10d/without_gil.h"
#include "stretto/c10d/work.h"

namespace stretto::c10d_backend {

thread_local std::shared_ptr<Driver::State> Driver::led_;

void Driver::drive(std::shared_ptr<InFlight> operation) {
  if (!owner_process_.is_here()) return;
  const MutexLock lock(state_->mutex);
  state_->queue.push_back(std::move(operation));
  find_leader(state_);
}

void Driver::find_leader(const std::shared_ptr<State>& state) {
  if (state->led != nullptr || state->queue.empty()) return;
  if (state->idle > 0) return state->changed.notify_one();
  Result<std::thread> started = start_thread("stretto-driver", [state] { run(state); });
  if (started.ok()) {
    ++state->idle;
    state->threads.push_back(std::move(*started));
  } else {
    log(LogLevel::warning, "futures end only where somebody waits for their Work: {}",
        started.status().message());
  }
}

void Driver::before_callbacks() {
  const std::shared_ptr<State> state = std::exchange(led_, nullptr);
  if (state == nullptr) return;
  const MutexLock lock(state->mutex);
  // The callbacks may be those of another operation than the one that this thread waits for.
  if (!state->led->has_ended()) state->queue.push_front(state->led);
  state->led = nullptr;
  find_leader(state);
}

void Driver::stop() {
  if (!owner_process_.is_here()) return;
  MutexLock lock(state_->mutex);
  state_->stopping = true;
  state_->changed.notify_all();
  while (!state_->threads.empty()) {
    std::thread thread = std::move(state_->threads.back());
    state_->threads.pop_back();
    if (thread.get_id() == std::this_thread::get_id()) {
      // A callback on this thread has dropped the last user of this driver. The thread ends by
      // itself.
      thread.detach();
      continue;
    }
    lock.unlock();
    {
      const WithoutGil without_gil;
      thread.join();
    }
    lock.lock();
  }
}

void Driver::run(const std::shared_ptr<State>& state) {
  MutexLock lock(state->mutex);
  while (true) {  // This thread is counted as idle already.
    while (state->queue.empty() ? !state->stopping : state->led != nullptr) {
      state->changed.wait(lock.native());
    }
    --state->idle;
    if (state->queue.empty()) {
      // Other threads that have to stop may be waiting until this one leads no more.
      state->changed.notify_all();
      return;
    }
    std::shared_ptr<InFlight> operation = std::move(state->queue.front());
    state->queue.pop_front();
    state->led = operation;
    led_ = state;
    lock.unlock();
    catch_all([&] { operation->end_beside_others(); },
              [](const char* what) { log(LogLevel::error, "a future may not end: {}", what); });
    lock.lock();
    if (std::exchange(led_, nullptr) != nullptr) state->led = nullptr;
    lock.unlock();
    operation.reset();  // Not under the lock: tensors may need the lock of Python.
    lock.lock();
    ++state->idle;
  }
}

}  // namespace stretto::c10d_backend
