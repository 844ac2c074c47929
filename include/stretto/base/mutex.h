// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <mutex>

// Attributes that say what a lock guards and which functions need it held. Clang checks them
// (-Wthread-safety; `./dev check` does so); for other compilers they are empty.
#if defined(__clang__)
#define STRETTO_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define STRETTO_THREAD_SAFETY(attribute)
#endif
#define STRETTO_CAPABILITY(name) STRETTO_THREAD_SAFETY(capability(name))
#define STRETTO_SCOPED_CAPABILITY STRETTO_THREAD_SAFETY(scoped_lockable)
#define STRETTO_GUARDED_BY(lock) STRETTO_THREAD_SAFETY(guarded_by(lock))
#define STRETTO_REQUIRES(lock) STRETTO_THREAD_SAFETY(requires_capability(lock))
#define STRETTO_ACQUIRE(...) STRETTO_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define STRETTO_TRY_ACQUIRE(...) STRETTO_THREAD_SAFETY(try_acquire_capability(__VA_ARGS__))
#define STRETTO_RELEASE(...) STRETTO_THREAD_SAFETY(release_capability(__VA_ARGS__))
// For a function that releases a lock and takes it again in a way that Clang cannot follow.
#define STRETTO_UNCHECKED_LOCKING STRETTO_THREAD_SAFETY(no_thread_safety_analysis)

namespace stretto {

class STRETTO_CAPABILITY("mutex") Mutex {
 public:
  bool try_lock() STRETTO_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a Mutex, until it is destroyed or unlocked.
class STRETTO_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) STRETTO_ACQUIRE(mutex) : held_(mutex.mutex_) {}
  // For a mutex that this thread has locked already.
  MutexLock(Mutex& mutex, std::adopt_lock_t adopt) STRETTO_REQUIRES(mutex)
      : held_(mutex.mutex_, adopt) {}
  ~MutexLock() STRETTO_RELEASE() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() STRETTO_ACQUIRE() { held_.lock(); }
  void unlock() STRETTO_RELEASE() { held_.unlock(); }
  // For a condition_variable to wait with.
  std::unique_lock<std::mutex>& native() { return held_; }

 private:
  std::unique_lock<std::mutex> held_;
};

}  // namespace stretto
