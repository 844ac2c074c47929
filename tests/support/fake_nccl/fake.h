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

// A double of NCCL, of a device's driver and of our kernels, in memory of the host: it has their C
// interface, and none of their code. What tests show with it is what stretto does with those, not
// what they do. It is strict where a device would only be unlucky: memory of the "device" cannot be
// touched by the host, streams run late, launches without blocking reach the stream later than they
// return, and calls that NCCL forbids are remembered as misuse.
//
// The ranks are threads of one process; only memory that is exported, and our kernels, are those of
// several, too.
namespace stretto::fake_nccl {

// What the driver says to calls that it does not take.
inline constexpr int kInvalidValue = 1;
inline constexpr int kOutOfMemory = 2;
inline constexpr int kInvalidContext = 201;

using nccl::Comm;
using nccl::ResultCode;
using nccl::StreamHandle;
using nccl::Type;

// What tests tell the double, and ask it. By fake_nccl_change(), since it is loaded.
struct Control {
  int version = 22703;
  int devices = 8;
  int longest_delay_us = 200;
  // Kernels wait for ever, until they are aborted.
  bool stalls = false;
  // NCCL goes on taking calls that it has begun to take.
  bool holds_launches = false;
  // Connecting never ends, until it is aborted.
  bool stalls_connecting = false;
  // A graph captures, on a thread of the program, a stream that the default ones wait for. It is
  // spoiled by what goes to those, and by what a thread asks the device without being told to
  // respect no graph.
  bool captures = false;
  bool has_spoiled_capture = false;
  // Our kernels wait until they are let go; or are refused with this error, if it is not 0.
  bool holds_kernels = false;
  int kernel_error = 0;
  int probe_error = 0;  // What they say to the question whether they run here.
  // Streams that are done say this, and the default one and memory say it always; devices get no
  // access to memory of others.
  int stream_error = 0;
  bool refuses_peers = false;
  // Who has this stream wait is blocked, as by a launch queue that is full, until a communicator of
  // NCCL on that device is aborted.
  StreamHandle full_stream = nullptr;
  int full_device = 0;
  // Devices have no memory left.
  bool has_no_memory = false;
  // No page of the host is locked.
  bool refuses_locks = false;
  // What memory for export there is.
  std::size_t exportable_bytes = std::size_t{1} << 30;
  // And what there is besides when PyTorch has emptied its cache.
  std::size_t cached_bytes = 0;
  // This rank's communicators have this error from their next call on; -1: none.
  int failing_rank = -1;
  ResultCode error = 6;

  int connections = 0;  // Communicators of NCCL that ranks have begun to make.
  int launches = 0;     // Groups of calls, of all ranks.
  int aborts = 0;
  int kernels = 0;         // Of ours that have begun.
  int waits_for_room = 0;  // On the stream that is full.
  int events = 0;          // That have been created, less those that have been destroyed.
  int allocations = 0;
  // Of memory for export, that are there: its bytes, and places that are reserved or hold it.
  std::size_t exported_bytes = 0;
  int reserved_places = 0;
  int mapped_places = 0;
  // Of memory that NCCL has made: blocks that are there, and those that communicators know.
  int made_blocks = 0;
  int registrations = 0;
  int locked_pieces = 0;  // Of memory of the host.
  std::string misuse;     // The first.
};

struct Shared {
  std::mutex mutex;
  std::condition_variable changed;
  Control control;
  int captures = 0;  // That have begun and not ended.
  std::mt19937_64 random{1};

  void misused(const std::string& what) {
    if (control.misuse.empty()) control.misuse = what;
  }
  // The lock is held. What the device says, while a graph is captured, to what would go to the
  // default stream, and to a question; 0: nothing against it.
  int refusal_on(StreamHandle stream);
  int refusal_of_question();
  std::chrono::microseconds delay() {
    const auto most = static_cast<std::uint64_t>(control.longest_delay_us) + 1;
    return std::chrono::microseconds(random() % most);
  }
};
Shared& shared();

// Of a device.
bool is_device_memory(const void* data);
// Where the double itself, and a test, reaches such memory; where nobody does, if the calling
// thread's device has no access to it.
std::byte* reach(const void* data);
// The part of those two for exported memory: where it is reached, and on which device it is; null
// and -1 if it is none.
std::byte* reach_exported(const void* data);
int device_of_exported(const void* data);
// Whether a communicator knows the memory there, the end of all that it knows, and whether it takes
// no calls any more: with the lock.
bool is_registered(Comm comm, const void* data);
void forget_registrations(Comm comm);
bool is_finalized(Comm comm);
// Whether the calling thread has made a device its current one.
bool has_context();
// Of the calling thread's current device.
int current_device();
// To be run on a stream, behind what is there already; while the stream is captured, whenever the
// graph is.
void enqueue(StreamHandle stream, std::function<void()> work);
bool is_captured(StreamHandle stream);
// Waits until a stream that is not captured has done what is there.
void finish(StreamHandle stream);

}  // namespace stretto::fake_nccl

extern "C" {
// Calls `change` where nothing else looks.
void fake_nccl_change(void (*change)(stretto::fake_nccl::Control&, void*), void* what);
std::byte* fake_nccl_reach(const void* data);
// Runs `work` on a stream of the calling thread's device, behind what is there already, or in the
// graph that captures the stream. When it does not run any more, `free` is called.
void fake_nccl_enqueue(stretto::nccl::StreamHandle stream, void (*work)(void*), void* what,
                       void (*free)(void*));
}
