// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <vector>

#include "stretto/communicator/execution.h"
#include "stretto/communicator/step.h"

namespace stretto::communicator {

// Runs a plan whose steps are messages.
//
// A chunk is cut into segments; each segment runs the whole list of steps in a lane of its own,
// with scratch of its own, and a few lanes are in flight at a time. So while one segment is on the
// wire another is reduced, and algorithms need not know. Within a lane a step starts when the steps
// it depends on have ended (schedule/dependencies.h).
class MessageExecution final : public Execution, private transport::RequestOwner {
 public:
  MessageExecution(std::shared_ptr<const Plan> plan, const Membership& membership,
                   transport::Transport& transport);

  void start(const Call& call) override;
  bool advance() override;
  bool ended() const override { return !status_.ok() || lanes_left_ == 0; }
  const Status& status() const override { return status_; }
  void fail(const Status& status) override;
  std::size_t idle_bytes() const override { return scratch_.size(); }
  std::vector<Rank> waiting_for() const override;

 private:
  struct Lane {
    std::uint32_t segment = 0;
    std::vector<std::int32_t> waits;           // Per step: how many steps it still waits for.
    std::vector<transport::Request> requests;  // Per step.
    std::size_t steps_left = 0;
    std::byte* scratch = nullptr;
  };
  struct Ready {
    std::uint32_t lane;
    std::int32_t step;
  };

  void start_segment(std::uint32_t lane);
  void run_step(Ready ready);
  void post(std::uint32_t lane_index, std::int32_t index);
  void step_done(std::uint32_t lane, std::int32_t step);
  void request_done(transport::Request& request) override;

  std::shared_ptr<const Plan> plan_;
  const Membership* membership_;
  transport::Transport* transport_;
  LocalSteps local_;
  Call call_;
  std::vector<Lane> lanes_;
  std::vector<std::byte> scratch_;
  std::vector<Ready> ready_;  // A stack: depth first keeps a segment in the cache.
  std::uint32_t next_segment_ = 0;
  std::size_t lanes_left_ = 0;
  Status status_;
};

}  // namespace stretto::communicator
