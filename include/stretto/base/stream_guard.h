// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <utility>

namespace stretto {

// While it lives, operations that the calling thread submits on device memory begin after the work
// on `stream`, instead of that on the device's default stream, and Work::wait_on_device() makes
// `stream` wait. A guard on another device's stream is of no use: each rank has one device.
//
// While a CUDA graph captures `stream`, collectives by NCCL become part of the graph. They run when
// it is launched; all ranks must launch it equally often. Submitting such a collective blocks until
// all ranks have submitted it, and fails as Work::wait() does. It is on a branch of the graph.
// wait(), or destroying the Work, joins that branch to the stream of the guard that holds then.
// Destroy the graph before the communicator; if the communicator has failed, do not launch the
// graph again.
class StreamGuard {
 public:
  // `stream`: a cudaStream_t (the same as a CUstream), which must outlive the guard and the Works
  // of operations submitted under it. Null: the default stream.
  explicit StreamGuard(void* stream) : before_(std::exchange(of_thread(), stream)) {}
  ~StreamGuard() { of_thread() = before_; }
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

  // The stream of the calling thread's guard; null without a guard, or for the default stream.
  static void* current() { return of_thread(); }

 private:
  static void*& of_thread();

  void* before_;
};

}  // namespace stretto
