// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stretto/base/collective_library.h"
#include "stretto/communicator/collective_call.h"
#include "stretto/communicator/options.h"
#include "stretto/communicator/work.h"

namespace stretto::communicator {

// The caller of operations in a group whose ranks have devices.
struct DeviceCaller {
  Rank rank;                     // In its group; error messages about rejected calls name it.
  Rank job_rank;                 // In the job; failures of operations name it.
  const std::string& algorithm;  // The algorithm that the caller named; may be empty.
  DeviceOperations& devices;
  bool packs_parts = false;  // True for our own schedules; a library takes parts as they are.
};

// Finds out where the buffers of `calls` lie, and marks calls on memory of a device by their
// algorithm and the kind of their packing. Leaves calls on memory of the host unchanged, except
// gather, scatter and all_to_all with unequal shares. There a rank whose buffers are all empty
// cannot see where those of other ranks lie. So a library takes all such calls and copies buffers
// of the host; our schedules take those whose empty buffers begin in memory of a device. Throws
// InvalidArgument if a call uses both kinds of memory, if the library or schedules do not support
// it on devices, or if an algorithm was named, since names are only for memory of the host. If it
// throws, calls that it has changed can still be made.
//
// Calls on a device begin behind the work on the calling thread's stream (StreamGuard). Returns the
// ends of the calls that a CUDA graph captures.
std::vector<std::shared_ptr<DeviceEnd>> go_by_memory(std::span<CollectiveCall> calls,
                                                     const DeviceCaller& caller);

// Makes a Work for calls that a CUDA graph captures (Work::is_captured()). `ends` are their ends in
// the graph, `last` is the last call's collective. Blocks until `begun`, the submitted Work, has
// ended: then the calls are in the graph, before all that the program adds next. Throws like
// begun.wait().
Work make_captured(Work begun, Collective last, std::vector<std::shared_ptr<DeviceEnd>> ends);

// Throws InvalidArgument if a message is in memory of a device, which is not supported.
void refuse_device_memory(std::span<const Transfer> messages, const DeviceCaller& caller);

}  // namespace stretto::communicator
