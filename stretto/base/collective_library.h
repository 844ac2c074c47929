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

// The buffers of a call on several buffers (each rank's share, or the entries of a list) or on
// multiples of them. In host memory these buffers are packed (group/packing.h). The host can
// neither copy nor multiply memory of a device, so a library for such memory gets the parts
// themselves.
struct BufferParts {
  // The input, if it is not the caller's: `source` and then the views in `more`, all of one dtype,
  // times `factor`. See has_sources().
  ConstView source = {};
  std::vector<ConstView> more = {};  // Usually empty: no allocation.
  double factor = 1;
  // The output, if it is not the caller's: these views, one after the other. Empty: the caller's.
  std::vector<View> targets = {};

  bool has_sources() const { return source.bytes() > 0 || !more.empty() || factor != 1; }
};

// One rank's part in a collective, as a library gets it. All pointers stay valid until has_ended()
// returns true or abandon() is called. Input and output may overlap. `counts` and `received` have
// one entry per rank of the group, in elements.
struct LibraryCall {
  OperationDescriptor operation;  // Its count is the elements of the whole buffer.
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  // The share of each rank; in an all_to_all, what this rank sends to each. Null: no shares.
  const std::size_t* counts = nullptr;
  const std::size_t* received = nullptr;  // In an all_to_all, what this rank receives from each.
  // For a DeviceLibrary only: the buffers instead of `input` and `output`, or null, and the number
  // that mark() returned when the call was submitted.
  const BufferParts* parts = nullptr;
  int mark = -1;
};

// The end of an operation on a device. Any thread.
class DeviceEnd {
 public:
  virtual ~DeviceEnd() = default;
  // Makes a stream of the device wait for the end of the operation. If a CUDA graph has captured
  // the operation, the same graph must capture the stream. Null is the device's default stream or,
  // for a captured operation, the stream behind which it begins. Fails with the device's error,
  // mostly because the capture has ended. May block until the stream has room, and so until other
  // work has ended; call it without the engine's lock.
  virtual Status let_wait(void* stream) = 0;
};

// A point on a stream of a device, behind which a call begins.
struct Mark {
  int number = -1;  // LibraryCall::mark; not negative.
  // Not null if a CUDA graph captures the call: the end of the operation in the graph. Such a call
  // has ended for the host when all of it is in the graph.
  std::shared_ptr<DeviceEnd> captured = nullptr;
};

// A rank's device, as operations on its memory need it, whether a library or our schedules run
// them. Any thread.
class DeviceOperations {
 public:
  // Name of the library that runs the operations: "NCCL 2.27.3".
  virtual const char* name() const = 0;
  // Number of the device among those that this process sees.
  virtual int device() const = 0;
  // Number of the device whose memory `data` points to. This device, if the driver moves that
  // memory between devices and the host by itself. -1 for memory of the host.
  virtual int device_of(const void* data) const = 0;
  // Whether operations accept memory at `data`, of this device or of a device of another rank.
  virtual bool takes(const void* data) const = 0;
  // Whether gather, scatter and all_to_all with unequal shares accept host memory, too.
  virtual bool takes_host_memory() const = 0;
  // Whether the memory at `data` has been registered. If so, all buffers of an operation must be
  // registered, on all ranks.
  virtual bool is_registered(const void*) const { return false; }
  // Why the operation is not supported, as the rest of a sentence that begins with name(); "" if it
  // is supported. The answer depends only on what all ranks know, so it is the same on all of them.
  virtual const char* refusal(const OperationDescriptor& operation,
                              const BufferParts& parts) const = 0;
  // Whether a CUDA graph is capturing `stream` (null: the default stream). If so, the graph will
  // contain the calls that begin behind the stream. Fails if such calls cannot be captured, or with
  // the device's error.
  virtual Result<bool> is_captured(void* stream) = 0;
  // Makes a mark for a call that must begin after all work that is on `stream` now. `is_captured`
  // is the result of is_captured(). Fails with the device's error.
  virtual Result<Mark> mark(void* stream, bool is_captured) = 0;
  // Releases a mark whose call will never begin.
  virtual void forget(int mark) = 0;

 protected:
  ~DeviceOperations() = default;
};

// The part of a library that works on memory of devices.
class DeviceLibrary : public DeviceOperations {
 public:
  // Allocates registered memory of the device, zeroed. It may outlive the library. It is freed with
  // the last copy of the pointer. Allocating and freeing wait for all work that the process has
  // begun on the device. Any thread.
  virtual Result<std::shared_ptr<std::byte>> allocate(std::size_t bytes) = 0;
  // The end of an operation that start() has begun and that has not ended, once all of it is on the
  // device: then it ends there without this process, unless ranks fail. Null before.
  virtual std::shared_ptr<DeviceEnd> end_on_device(int operation) = 0;
  // After abandon(): whether the device has stopped using callers' buffers.
  virtual bool has_given_back() = 0;

 protected:
  ~DeviceLibrary() = default;
};

// Why a library has stopped working.
struct LibraryFailure {
  StatusCode code = StatusCode::ok;
  const char* text = "";  // Owned by the library.
};

// A library with its own collectives, such as MPI or NCCL, for one group of ranks. The group starts
// an operation when all ranks have entered it and agree on it, in the same order on all ranks.
// Several operations may be under way at a time. The group itself watches deadlines and the deaths
// of ranks.
//
// A library may be a plug-in that is compiled with this header alone, so nothing here refers to a
// symbol of stretto or of the plug-in. One thread at a time may call it, except for can_run(). No
// function blocks or throws.
class CollectiveLibrary {
 public:
  virtual ~CollectiveLibrary() = default;

  // "Open MPI v4.1.4".
  virtual const char* name() const = 0;
  // The first failed call, after which nothing works. If the text repeats the words of another
  // library, such as NCCL, it says so.
  virtual LibraryFailure failure() const = 0;

  // Whether the library can run the operation. The answer depends on `operation` alone, so it is
  // the same on all ranks. Schedules run the other operations. If the library has no mean, the
  // group makes it from the sum. Any thread.
  virtual bool can_run(const OperationDescriptor& operation) const = 0;
  // Whether the library stops using buffers after abandon(): with for_devices(), as soon as
  // has_given_back() returns true. If not, it gets copies of the buffers, which it keeps if an
  // operation fails.
  virtual bool gives_buffers_back() const = 0;

  // Begins a collective. Returns its number, for has_ended().
  virtual int start(const LibraryCall& call) = 0;
  // Whether the operation has ended. Also lets the library make progress. Called again until it
  // returns true, and not after that.
  virtual bool has_ended(int operation) = 0;
  // Called when the group has failed; no operation is asked for after that. Collectives may still
  // be under way. They must neither end this process nor keep it from ending.
  virtual void abandon() = 0;
  // Not null: the library runs operations on memory of devices only. The algorithm of such an
  // operation is kDeviceAlgorithm.
  virtual DeviceLibrary* for_devices() { return nullptr; }
  // Whether the library has connected to those of the other ranks, or has failed to. Called until
  // it returns true, before all functions but name() and failure(). A caller that does not wait for
  // this destroys the library; what it has begun may then go on for ever, as after abandon().
  virtual bool is_connected() { return true; }
};

// The ranks of a group: `members` are their numbers in the job.
struct LibraryGroup {
  const int* members = nullptr;
  int size = 1;
  int rank = 0;                   // In the group.
  unsigned long long number = 0;  // Of the group, the same on all its ranks.
  int job_rank = 0;
  int job_size = 1;
};

// The function that a plug-in exports. Its name changes with every change of the declarations
// above. Returns the library, or null and the reason in `text`. All ranks of the group call it. It
// waits for the other ranks only if it must start a system that the library is part of, such as
// MPI, which a thread of the program must do.
using MakeLibrary = CollectiveLibrary* (*)(const LibraryGroup& group, char* text,
                                           std::size_t text_bytes);
#define STRETTO_MAKE_LIBRARY stretto_collectives_11
#define STRETTO_TEXT_OF(name) #name
#define STRETTO_TEXT(name) STRETTO_TEXT_OF(name)
inline constexpr const char* kMakeLibrary = STRETTO_TEXT(STRETTO_MAKE_LIBRARY);
#undef STRETTO_TEXT
#undef STRETTO_TEXT_OF

}  // namespace stretto
