// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stretto/base/collective_library.h"
#include "stretto/communicator/backend.h"
#include "stretto/communicator/work.h"

namespace stretto::communicator {

// Who asks for operations in a group whose ranks have devices.
struct DeviceCaller {
  Rank rank;                     // In its group: named where a call is rejected.
  Rank job_rank;                 // In the job: named where an operation fails.
  const std::string& algorithm;  // That was named; may be empty.
  DeviceOperations& devices;
  bool packs_parts = false;  // As our schedules do, while a library takes them as they are.
};

// Finds out where the buffers lie. The algorithm of calls on memory of a device, and the kind of
// their parts, say so. What lies in memory of the host is left as it is, but for gather, scatter
// and all_to_all with unequal shares: a rank whose own are all empty cannot see where those of
// others lie, so a library has them all, and copies what lies in memory of the host; and our
// schedules have those whose empty buffers begin in memory of a device. Throws
// InvalidArgument if one is on both kinds of memory, if whoever runs operations on devices does not
// do it, or if an algorithm was named, since names are of what is for memory of the host. Then no
// call has been changed that could not still be made.
//
// On a device they begin behind the calling thread's stream (StreamGuard). Returns the ends of
// those that a CUDA graph captures.
std::vector<std::shared_ptr<DeviceEnd>> go_by_memory(std::span<CollectiveCall> calls,
                                                     const DeviceCaller& caller);

// A Work for calls that a CUDA graph captures and that end there as `ends` (Work::is_captured()).
// Blocks until `begun`, which is what was submitted, has ended: then they are in the graph, in
// front of what the program does next. Throws as its wait(). `last`: which the last of them is.
Work make_captured(Work begun, Collective last, std::vector<std::shared_ptr<DeviceEnd>> ends);

// Throws InvalidArgument if a message is in memory of a device: those are not moved.
void refuse_device_memory(std::span<const Transfer> messages, const DeviceCaller& caller);

}  // namespace stretto::communicator
