// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

namespace stretto::c10d_backend {

// Gives the lock of the Python interpreter back while it lives, if this thread holds it. Whoever
// waits for other ranks, or for a thread that may run a callback of Python's, must not hold it.
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
