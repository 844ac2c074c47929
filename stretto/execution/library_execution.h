// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "stretto/base/collective_library.h"
#include "stretto/execution/message_execution.h"

namespace stretto::execution {

// A collective that a library runs as a whole, bound to its size and shares. Immutable.
struct LibraryPlan {
  OperationDescriptor operation;  // As the library is to run it: a mean may have become a sum.
  int divisor = 1;                // What its result is to be divided by.
  std::vector<std::size_t> counts = {};
  std::vector<std::size_t> received = {};
  std::size_t input_bytes = 0;
  std::size_t output_bytes = 0;
};

// `whole` says how long the buffers and shares are; its schedule has no steps.
LibraryPlan make_library_plan(const Plan& whole, const CollectiveLibrary& library);

// A group's library, and whose turn it is: all ranks must hand it the collectives of a group in the
// same order.
struct SharedLibrary {
  std::shared_ptr<CollectiveLibrary> library;
  std::uint64_t taken = 0;  // Turns given to executions.
  std::uint64_t begun = 0;
  bool is_abandoned = false;

  void abandon() {
    if (!std::exchange(is_abandoned, true)) library->abandon();
  }
};

// Runs a collective by a library. First the ranks meet, by stretto's own messages with the
// operation in them. So the library is handed a collective only when all ranks have entered it and
// agree on it, and a late rank is named as in other executions.
class LibraryExecution final : public Execution {
 public:
  // `meeting`: a plan of signals, which ends when all ranks have begun. `shared` outlives it.
  LibraryExecution(std::shared_ptr<const LibraryPlan> plan, std::shared_ptr<const Plan> meeting,
                   SharedLibrary& shared, const Membership& membership,
                   transport::Endpoint& transport);

  void start(const Call& call, Turn& turn) override;
  bool advance(Turn& turn) override;
  bool take_completions() override { return meeting_.take_completions(); }
  bool ended() const override;
  const Status& status() const override { return status_.ok() ? meeting_.status() : status_; }
  void fail(const Status& status) override;
  std::size_t idle_bytes() const override { return copies_bytes_ + meeting_.idle_bytes(); }
  // All others while the library runs it, which does not say for whom it waits.
  std::vector<Rank> waiting_for() const override;
  bool must_be_asked() const override {
    return phase_ == Phase::running || phase_ == Phase::giving_back;
  }
  std::shared_ptr<DeviceEnd> end_on_device() const override;

 private:
  enum class Phase { meeting, running, unpacking, giving_back, ended };

  bool is_copied_in() const { return copied_bytes_ == plan_->input_bytes; }
  bool copy_in(Turn& turn);
  bool copy_out(Turn& turn);
  void hand_over();
  Status compare_counts() const;

  std::shared_ptr<const LibraryPlan> plan_;
  SharedLibrary* shared_;
  const Membership* membership_;
  MessageExecution meeting_;
  Call call_;
  // For an all_to_all whose counts only pairs of ranks know: how much each rank says it sends here.
  std::vector<std::size_t> told_;
  Phase phase_ = Phase::ended;
  std::uint64_t turn_ = 0;  // At the library: SharedLibrary.
  int operation_ = 0;       // The library's number.
  // A copy of the input and, behind it, one of the output, if the library needs copies.
  std::shared_ptr<std::byte[]> copies_;
  std::size_t copies_bytes_ = 0;
  std::size_t input_room_bytes_ = 0;
  std::size_t copied_bytes_ = 0;  // Of the copy that is under way.
  Status status_;
};

}  // namespace stretto::execution
