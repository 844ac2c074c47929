// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "stretto/communicator/communicator.h"
#include "stretto/cuda/work_stream.h"
#include "stretto/execution/kernel_queue.h"
#include "stretto/execution/pipeline.h"

namespace stretto::cuda {

// All-reduces memory of a device by way of the host's: a slice is copied to page-locked memory that
// the ranks of the host have mapped, reduced there and between hosts by the communicator, whatever
// moves its data, and copied back, while other slices are in the other two stages (the pipeline
// "staged"). So results have the same bits as those of the communicator.
//
// All ranks begin the same operations in the same order, on a communicator that nothing else uses.
// Communicator and device must outlive it. One thread at a time. Nothing is done beside the calls:
// advance() and wait() drive. Destroying it waits for copies in flight.
class StagedAllReduce {
 public:
  struct Options {
    std::size_t slice_bytes = 1024 * 1024;
    int slots = 4;  // Slices in flight, each of which takes so much memory of the host.
  };
  // Fails as Communicator::allocate() and Device do. Does not wait for other ranks.
  static Result<std::unique_ptr<StagedAllReduce>> create(Communicator& communicator,
                                                         execution::Device& device,
                                                         const Options& options);
  ~StagedAllReduce();

  // Begins an operation on `data`, in place, behind `ready`, if that is not null: the moment at
  // which the data is there, which must not be recorded again before the operation has ended.
  // Returns its number, and waits for nothing.
  std::uint64_t begin(const View& data, const AllReduceOptions& options = {},
                      execution::StreamEvent* ready = nullptr);
  // Begins what can be begun. Returns whether there was anything to do. Does not wait.
  bool advance();
  // Whether the operation of that number, and all before it, have ended well.
  bool has_ended(std::uint64_t number) const;
  // Drives until it has. Fails as operations of the communicator and copies of the device do, then
  // with the first failure for ever, and no more copies are made of or to any `data`; or with
  // timeout, after which it can be asked again.
  Status wait(std::uint64_t number, const Deadline& deadline = {});

 private:
  struct Slice {
    View data;
    AllReduceOptions options;
  };
  StagedAllReduce(Communicator& communicator, std::size_t slice_bytes);
  Status set_up(execution::Device& device, int slots);
  Status begin_stage(const execution::Pipeline::Task& task);
  Status exchange(const Slice& slice, std::byte* slot);

  Communicator* communicator_;
  std::size_t slice_bytes_;
  Memory slots_;
  std::shared_ptr<void> pinned_;
  std::unique_ptr<execution::KernelQueue> out_;
  WorkStream exchange_;
  std::unique_ptr<execution::KernelQueue> back_;
  std::unique_ptr<execution::Pipeline> pipeline_;
  std::deque<Slice> slices_;  // That have not ended, as far as known.
  std::uint64_t first_ = 0;   // Of these.
};

}  // namespace stretto::cuda
