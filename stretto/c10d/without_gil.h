// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

namespace stretto::c10d_backend {

// Releases the lock of the Python interpreter (GIL) while this lives, if this thread holds it. A
// thread must not hold it while it waits for other ranks, or for a thread that may run a callback
// of Python's.
class WithoutGil {
 public:
  WithoutGil();
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void* const state_;
};

}  // namespace stretto::c10d_backend
