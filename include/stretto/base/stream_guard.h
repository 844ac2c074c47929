// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <utility>

namespace stretto {

// While it lives, what the calling thread submits on memory of a device begins behind what is on
// `stream`, instead of the device's default one; and Work::wait_on_device() has `stream` wait. A
// guard on another device's stream is of no use: each rank has one device.
//
// While a CUDA graph captures `stream`, collectives by NCCL become part of the graph: they run when
// it is launched, on all ranks as often. Submitting one then blocks until all ranks have submitted
// it, and fails as Work::wait() does. The work is on a branch of the graph, which wait(), or
// destroying the Work, brings back to the stream of the guard that is there then. Before the
// communicator goes, destroy the graph; when it has failed, do not launch the graph again.
class StreamGuard {
 public:
  // `stream`: a cudaStream_t, which is a CUstream, that outlives the guard and the Works of what
  // was submitted. Null: the default one.
  explicit StreamGuard(void* stream) : before_(std::exchange(of_thread(), stream)) {}
  ~StreamGuard() { of_thread() = before_; }
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

  // Of the calling thread; null: it has no guard, or one of the default stream.
  static void* current() { return of_thread(); }

 private:
  static void*& of_thread();

  void* before_;
};

}  // namespace stretto
