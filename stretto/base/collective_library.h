// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

#include "stretto/base/operation.h"

namespace stretto {

// One rank's part in a collective, as a library is handed it. The lists have an entry per rank of
// the group, in elements: what belongs to each rank; of an all_to_all, what this rank sends to each
// and receives from each. All stays until has_ended() or abandon(). Input and output may overlap.
struct LibraryCall {
  OperationDescriptor operation;  // Its count is that of the whole buffer.
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  const std::size_t* counts = nullptr;    // Null where nothing belongs to single ranks.
  const std::size_t* received = nullptr;  // Of an all_to_all.
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
  // What the library has said of the first call that failed, after which nothing works; "" before.
  virtual const char* failure() const = 0;

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
// why in `text`. All ranks of the group call this together; it may block.
using MakeLibrary = CollectiveLibrary* (*)(const LibraryGroup& group, char* text,
                                           std::size_t text_bytes);
inline constexpr const char* kMakeLibrary = "stretto_collectives_1";

}  // namespace stretto
