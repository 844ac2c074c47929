// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "stretto/base/mutex.h"
#include "stretto/base/rank_vector.h"
#include "stretto/c10d/abort_hooks.h"
#include "stretto/c10d/operation_tensors.h"
#include "stretto/c10d/work.h"
#include "stretto/communicator/communicator.h"

namespace stretto::c10d_backend {

// The connected ranks of a group, until reconfigure() gives it others. An operation keeps the
// membership with which it has begun.
class Membership {
 public:
  // `named_ranks` and `global_ranks`: see below.
  Membership(std::unique_ptr<Communicator> made, std::vector<int> named_ranks,
             std::vector<uint64_t> global_ranks, std::shared_ptr<const AbortHooks> abort_hooks);
  // Ends the membership on this rank only, and without the abort hooks. Operations in flight fail,
  // unless calls in progress on other threads keep the communicator until they return.
  static void end(std::shared_ptr<Membership> members);

  int rank() const { return communicator->rank().value(); }
  int size() const { return communicator->size(); }
  // The numbers that `ranks` of this group have in PyTorch's job. Throws ValueError for other
  // ranks.
  std::vector<uint64_t> global_ranks_of(const std::vector<int>& ranks) const;
  // The group as flight records have it, under PyTorch's present id and name.
  std::shared_ptr<const ObservedGroup> flight_group(const std::string& id, const std::string& name);
  // Runs a call that waits. Other groups' operations go on meanwhile. A failure is noted and thrown
  // like that of an operation.
  void run(c10::function_ref<void(Communicator&)> call) const;
  // Counts and records an operation. Not for a refused call, which may be refused on this rank
  // only.
  uint64_t record(communicator::FlightEntry entry);
  uint64_t collectives() const { return collectives_; }  // Number submitted.

  // By rank: the numbers by which failures name them, and those in PyTorch's job.
  const RankVector<int> named_ranks;
  const RankVector<uint64_t> global_ranks;
  const std::shared_ptr<Communicator> communicator;
  const std::shared_ptr<DeviceBlocks> host_blocks;
  const std::shared_ptr<DeviceBlocks> blocks;  // Null with NCCL, which takes all memory.
  const std::shared_ptr<Shared> shared = std::make_shared<Shared>();

 private:
  const std::uint64_t serial_;  // Counted as other backends count their groups.
  std::atomic<uint64_t> collectives_ = 0;
  std::atomic<uint64_t> transfers_ = 0;  // Sends and receives.
  Mutex mutex_;
  std::shared_ptr<const ObservedGroup> flight_group_ STRETTO_GUARDED_BY(mutex_);
};

// The tensors of an operation, and the ranks that take part in it.
struct MemberTensors final : OperationTensors {
  MemberTensors(std::shared_ptr<Membership> of, std::shared_ptr<DeviceBlocks> blocks, Use use)
      : OperationTensors(of->communicator, std::move(blocks), use), members(std::move(of)) {}

  int rank() const { return members->rank(); }
  int size() const { return members->size(); }

  const std::shared_ptr<Membership> members;
};

// 0, 1, 2, ...
template <class Number>
std::vector<Number> numbers_to(int size) {
  std::vector<Number> numbers;
  for (int rank = 0; rank < size; ++rank) numbers.push_back(static_cast<Number>(rank));
  return numbers;
}

}  // namespace stretto::c10d_backend
