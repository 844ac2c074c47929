// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>

#include "stretto/nccl/interface.h"

// A double of NCCL, of a device's driver and of stretto's kernels, in host memory: it has their C
// interface, and none of their code. Tests with it show how stretto uses them, not what they do.
// The double is strict where a device would fail only sometimes: the host cannot touch "device"
// memory, streams run late now and then, launches without blocking reach the stream after they have
// returned, and calls that NCCL forbids are recorded as misuse.
//
// The ranks are threads of one process. Only exported memory and stretto's kernels also work
// between processes.
namespace stretto::fake_nccl {

// The driver's errors for calls that it refuses.
inline constexpr int kInvalidValue = 1;
inline constexpr int kOutOfMemory = 2;
inline constexpr int kInvalidContext = 201;

using nccl::Comm;
using nccl::ResultCode;
using nccl::StreamHandle;
using nccl::Type;

// How tests control and observe the double, by fake_nccl_change(). Counts begin when it is loaded.
struct Control {
  int version = 22703;
  int devices = 8;
  int longest_delay_us = 200;
  // NCCL's kernels wait until they are aborted.
  bool stalls = false;
  // NCCL does not finish taking the calls that it has begun to take.
  bool holds_launches = false;
  // Connecting does not end until it is aborted.
  bool stalls_connecting = false;
  // A thread of the program captures a graph from a stream that the default streams wait for. Work
  // on the default streams spoils the capture, and so does a query of the device by a thread that
  // is not in the relaxed capture mode.
  bool captures = false;
  bool has_spoiled_capture = false;
  // stretto's kernels wait until they are released; or are refused with this error, if it is not 0.
  bool holds_kernels = false;
  int kernel_error = 0;
  int probe_error = 0;  // The kernels' answer to the question whether they run here.
  // The answer of streams that are done, and always that of the default stream and of memory.
  int stream_error = 0;
  bool refuses_peers = false;  // Devices get no access to memory of other devices.
  // A thread that makes this stream wait is blocked, as by a full launch queue, until a
  // communicator of NCCL on device `full_device` is aborted.
  StreamHandle full_stream = nullptr;
  int full_device = 0;
  // Devices have no memory left.
  bool has_no_memory = false;
  // The driver refuses to lock pages of host memory.
  bool refuses_locks = false;
  // How much memory for export there is.
  std::size_t exportable_bytes = std::size_t{1} << 30;
  // How much more there is once PyTorch has emptied its cache.
  std::size_t cached_bytes = 0;
  // This rank's communicators return `error` from their next call on; -1: no rank's.
  int failing_rank = -1;
  ResultCode error = 6;

  int connections = 0;  // NCCL communicators that ranks have begun to make.
  int launches = 0;     // Groups of calls, of all ranks.
  int aborts = 0;
  int kernels = 0;         // Kernels of stretto that have begun.
  int waits_for_room = 0;  // Waits for room on the full stream.
  int events = 0;          // Events that exist.
  int allocations = 0;
  // Of memory for export: the bytes that exist, and the places that are reserved, or mapped to it.
  std::size_t exported_bytes = 0;
  int reserved_places = 0;
  int mapped_places = 0;
  // Of NCCL's own memory: the blocks that exist, and those that communicators have registered.
  int made_blocks = 0;
  int registrations = 0;
  int locked_pieces = 0;  // Page-locked pieces of host memory.
  std::string misuse;     // The first misuse.
};

struct Shared {
  std::mutex mutex;
  std::condition_variable changed;
  Control control;
  int captures = 0;  // Captures that have begun and not ended.
  std::mt19937_64 random{1};

  void misused(const std::string& what) {
    if (control.misuse.empty()) control.misuse = what;
  }
  // The caller holds the lock. Returns the device's error, while a graph is captured, for work on
  // the default stream, and for a query; 0 if it accepts.
  int refusal_on(StreamHandle stream);
  int refusal_of_question();
  std::chrono::microseconds delay() {
    const auto most = static_cast<std::uint64_t>(control.longest_delay_us) + 1;
    return std::chrono::microseconds(random() % most);
  }
};
Shared& shared();

// Whether `data` is memory of a device.
bool is_device_memory(const void* data);
// Returns where the double and tests access device memory. That is an invalid address if the
// calling thread's device has no access to the memory.
std::byte* reach(const void* data);
// The same for exported memory: where it is accessed, and on which device it is; null and -1 for
// other memory.
std::byte* reach_exported(const void* data);
int device_of_exported(const void* data);
// Call these with the lock held: whether `comm` has registered the memory at `data`, the end of all
// its registrations, and whether it is finalized and takes no more calls.
bool is_registered(Comm comm, const void* data);
void forget_registrations(Comm comm);
bool is_finalized(Comm comm);
// Whether the calling thread has made a device its current one.
bool has_context();
// The calling thread's current device.
int current_device();
// Runs `work` on a stream, behind its earlier work; if the stream is captured, at each launch of
// the graph.
void enqueue(StreamHandle stream, std::function<void()> work);
bool is_captured(StreamHandle stream);
// Waits until a stream, unless it is captured, has done its work so far.
void finish(StreamHandle stream);

}  // namespace stretto::fake_nccl

extern "C" {
// Calls `change` with the lock held.
void fake_nccl_change(void (*change)(stretto::fake_nccl::Control&, void*), void* what);
std::byte* fake_nccl_reach(const void* data);
// Runs `work` on a stream of the calling thread's device, behind its earlier work, or in the graph
// that captures the stream. Calls `free` when `work` will not run again.
void fake_nccl_enqueue(stretto::nccl::StreamHandle stream, void (*work)(void*), void* what,
                       void (*free)(void*));
}
