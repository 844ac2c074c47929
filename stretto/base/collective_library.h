// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "stretto/base/operation.h"
#include "stretto/base/status.h"
#include "stretto/base/view.h"

namespace stretto {

// Where a call is on several buffers, or on multiples of them: each rank's share, or the entries of
// a list. On the host they are packed (group/packing.h); a library for memory of devices, where the
// host can neither copy nor multiply, is handed them.
struct BufferParts {
  // In the place of the input, `more` behind it, times `factor`. All of one dtype. Empty: the
  // caller's input as it is.
  ConstView source = {};
  std::vector<ConstView> more = {};  // Empty for most, who then allocate nothing.
  double factor = 1;
  // In the place of the output, one behind the other. Empty: the caller's output as it is.
  std::vector<View> targets = {};

  bool has_sources() const { return source.bytes() > 0 || !more.empty() || factor != 1; }
};

// One rank's part in a collective, as a library is handed it. The lists have an entry per rank of
// the group, in elements: what belongs to each rank; of an all_to_all, what this rank sends to each
// and receives from each. All stays until has_ended() or abandon(). Input and output may overlap.
struct LibraryCall {
  OperationDescriptor operation;  // Its count is that of the whole buffer.
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  const std::size_t* counts = nullptr;    // Null where nothing belongs to single ranks.
  const std::size_t* received = nullptr;  // Of an all_to_all.
  // Of a DeviceLibrary: in the place of input and output, or null; and what mark() has said when
  // the call was submitted.
  const BufferParts* parts = nullptr;
  int mark = -1;
};

// The end of an operation on a device. Any thread.
class DeviceEnd {
 public:
  virtual ~DeviceEnd() = default;
  // Has a stream of the device wait for it; of an operation that a CUDA graph has captured, one
  // that the same graph captures. Null is the device's default stream, or the one behind which a
  // captured operation begins. Fails with what the device says, above all if the capture has ended.
  // May block until there is room on the stream, hence until what others do has ended: the engine's
  // lock is not held.
  virtual Status let_wait(void* stream) = 0;
};

// A moment on a stream of a device, for one call.
struct Mark {
  int number = -1;  // LibraryCall::mark; not negative.
  // Not null if a graph captures the call, which has ended when all of it is in the graph: its end
  // there.
  std::shared_ptr<DeviceEnd> captured = nullptr;
};

// A rank's device, as far as operations on its memory need it, whoever runs them: a library or our
// schedules. Any thread.
class DeviceOperations {
 public:
  // Of who runs them: "NCCL 2.27.3".
  virtual const char* name() const = 0;
  // Its number among those that this process sees.
  virtual int device() const = 0;
  // The number of the device in whose memory that is; this one's, if the driver moves it between
  // devices and the host by itself. -1: the host's.
  virtual int device_of(const void* data) const = 0;
  // Whether operations take what lies there, on this device or, on theirs, those of other ranks.
  virtual bool takes(const void* data) const = 0;
  // Whether gather, scatter and all_to_all with unequal shares take buffers of the host, too.
  virtual bool takes_host_memory() const = 0;
  // Whether that has been registered: then all buffers of an operation, of all ranks, have to be.
  virtual bool is_registered(const void*) const { return false; }
  // Why it does not do that, in a sentence that goes on after the name; "" if it does. By what all
  // ranks know.
  virtual const char* refusal(const OperationDescriptor& operation,
                              const BufferParts& parts) const = 0;
  // Whether a CUDA graph captures that stream of the device (null: the default one), which then is
  // to hold the calls that begin behind it. Fails if it cannot, or if the device says no.
  virtual Result<bool> is_captured(void* stream) = 0;
  // For a call that is to begin behind what is on that stream now. Fails if the device says no.
  // `is_captured`: as that function has just said.
  virtual Result<Mark> mark(void* stream, bool is_captured) = 0;
  // The call with that mark will never begin.
  virtual void forget(int mark) = 0;

 protected:
  ~DeviceOperations() = default;
};

// The half of a library that is for memory of devices.
class DeviceLibrary : public DeviceOperations {
 public:
  // Memory of the device that is registered. Zeroed; it may outlive the library, and goes with the
  // last copy, which waits, as this does, for all that the process has begun on the device. Any
  // thread.
  virtual Result<std::shared_ptr<std::byte>> allocate(std::size_t bytes) = 0;
  // Of one that start() has begun and that has not ended: its end, if all of it is on the device,
  // so that it ends there without this process, unless ranks fail. Null before.
  virtual std::shared_ptr<DeviceEnd> end_on_device(int operation) = 0;
  // After abandon(): whether the device uses nobody's buffers any more.
  virtual bool has_given_back() = 0;

 protected:
  ~DeviceLibrary() = default;
};

// Why a library works no more.
struct LibraryFailure {
  StatusCode code = StatusCode::ok;
  const char* text = "";  // The library's.
};

// A library with collectives of its own, such as an MPI or NCCL, for one group of ranks. The group
// hands it an operation when all ranks have entered it and agree on what it is, in the same order
// on all of them, and several at a time; it watches over deadlines and deaths itself.
//
// A library may be behind a plug-in that is compiled against it alone, so nothing here refers to a
// symbol of either side. One thread at a time, but for can_run(); nothing waits; nothing throws.
class CollectiveLibrary {
 public:
  virtual ~CollectiveLibrary() = default;

  // "Open MPI v4.1.4".
  virtual const char* name() const = 0;
  // Of the first call that has failed, after which nothing works. The text says whose words it
  // repeats, if it does, such as NCCL's.
  virtual LibraryFailure failure() const = 0;

  // Whether it does that, by what is in `operation` alone, so that all ranks say the same; what it
  // does not do, schedules do. A mean that it does not do is made of its sum. Any thread.
  virtual bool can_run(const OperationDescriptor& operation) const = 0;
  // Whether abandon() gives buffers back. One that cannot is handed copies, which are left to it
  // where an operation fails.
  virtual bool gives_buffers_back() const = 0;

  // Begins a collective, and returns a number to ask after it.
  virtual int start(const LibraryCall& call) = 0;
  // Lets the library work, too. Asked again until it says so, and then no more.
  virtual bool has_ended(int operation) = 0;
  // The group has failed: nothing is asked any more, though collectives may be under way, which
  // must neither end this process nor keep it from ending.
  virtual void abandon() = 0;
  // Not null: it runs what is in memory of devices, and nothing else. Whether that is so is in the
  // operation, as its algorithm kDeviceAlgorithm.
  virtual DeviceLibrary* for_devices() { return nullptr; }
  // Whether it has met those of the group's other ranks, or has failed to: asked again until it
  // says so, before all else but name() and failure(). Who does not wait for that destroys it, and
  // what it has begun may then go on for ever, as after abandon().
  virtual bool is_connected() { return true; }
};

// The ranks of a group, by their numbers in the job.
struct LibraryGroup {
  const int* members = nullptr;
  int size = 1;
  int rank = 0;                   // In the group.
  unsigned long long number = 0;  // The same on all its ranks.
  int job_rank = 0;
  int job_size = 1;
};

// What a plug-in exports, under a name that changes with what is above: the library, or null and
// why in `text`. All ranks of the group call this. It waits for them only if it has to start what
// the library is part of, such as MPI, which wants that done by a thread of the program.
using MakeLibrary = CollectiveLibrary* (*)(const LibraryGroup& group, char* text,
                                           std::size_t text_bytes);
#define STRETTO_MAKE_LIBRARY stretto_collectives_11
#define STRETTO_TEXT_OF(name) #name
#define STRETTO_TEXT(name) STRETTO_TEXT_OF(name)
inline constexpr const char* kMakeLibrary = STRETTO_TEXT(STRETTO_MAKE_LIBRARY);
#undef STRETTO_TEXT
#undef STRETTO_TEXT_OF

}  // namespace stretto
