// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "stretto/base/mutex.h"
#include "stretto/base/owner_process.h"

namespace stretto::c10d_backend {

class InFlight;

// Moves operations along that no waiting thread moves along: those whose future somebody waits for,
// those whose Work was dropped, and those that other ranks may need while this one waits for
// another group (pending_works.h). One thread at a time leads: it waits for the operations in their
// order. A callback on that thread may wait for another future, so another thread takes the lead
// before callbacks are called. There is one thread more than callbacks are nested.
class Driver {
 public:
  Driver() : state_(std::make_shared<State>()) {}
  ~Driver() { stop(); }
  void drive(std::shared_ptr<InFlight> operation);
  // Waits for all operations that were given to drive(), so let them end before.
  void stop();
  // To be called on any thread before it calls callbacks: if it leads, another thread takes the
  // lead.
  static void before_callbacks();

 private:
  struct State {
    // Detaches threads that stop() could not wait for.
    ~State() {
      for (std::thread& thread : threads) thread.detach();
    }
    Mutex mutex;
    std::condition_variable changed;
    std::deque<std::shared_ptr<InFlight>> queue STRETTO_GUARDED_BY(mutex);
    std::vector<std::thread> threads STRETTO_GUARDED_BY(mutex);
    int idle STRETTO_GUARDED_BY(mutex) = 0;
    std::shared_ptr<InFlight> led STRETTO_GUARDED_BY(mutex);  // What the leader waits for, if any.
    bool stopping STRETTO_GUARDED_BY(mutex) = false;
  };
  static void find_leader(const std::shared_ptr<State>& state) STRETTO_REQUIRES(state->mutex);
  static void run(const std::shared_ptr<State>& state);

  static thread_local std::shared_ptr<State> led_;  // The state of which this thread leads.
  const std::shared_ptr<State> state_;
  // A forked child has none of the threads, and must not wake waiters in its copy of the state.
  const OwnerProcess owner_process_;
};

}  // namespace stretto::c10d_backend
