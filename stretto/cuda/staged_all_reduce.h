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

// Reduces memory of a device by way of the host (all_reduce). Data is cut into slices. Each slice
// passes three stages, while other slices are in the other stages (the pipeline "staged"): it is
// copied to page-locked memory that the ranks of the host have mapped, reduced there and between
// hosts by the communicator, by any transport, and copied back. So results have the same bits as
// those of the communicator.
//
// All ranks begin the same operations in the same order, on a communicator that nothing else uses.
// Communicator and device must outlive this. One thread at a time. Only advance() and wait() make
// progress. The destructor waits for copies in flight.
class StagedAllReduce {
 public:
  struct Options {
    std::size_t slice_bytes = 1024 * 1024;
    // Slices in flight; each takes `slice_bytes` of the host's memory.
    int slots = 4;
  };
  // Fails as Communicator::allocate() and Device do. Does not wait for other ranks.
  static Result<std::unique_ptr<StagedAllReduce>> create(Communicator& communicator,
                                                         execution::Device& device,
                                                         const Options& options);
  ~StagedAllReduce();

  // Begins an operation on `data`, in place. Unless `ready` is null, it begins behind that event,
  // which must not be recorded again before the operation has ended. Returns the operation's
  // number, and waits for nothing.
  std::uint64_t begin(const View& data, const AllReduceOptions& options = {},
                      execution::StreamEvent* ready = nullptr);
  // Begins what can be begun. Returns whether there was anything to do. Does not wait.
  bool advance();
  // Whether the operation of that number, and all before it, have ended well.
  bool has_ended(std::uint64_t number) const;
  // Makes progress until it has. Fails as operations of the communicator and copies of the device
  // do; from then on it always fails with the first failure, and no `data` is copied any more.
  // Fails with timeout at the deadline; then it can be called again.
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
  std::deque<Slice> slices_;  // Slices that have not ended, as far as known.
  std::uint64_t first_ = 0;   // Number of the first of them.
};

}  // namespace stretto::cuda
