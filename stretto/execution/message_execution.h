// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "stretto/execution/execution.h"
#include "stretto/execution/step.h"
#include "stretto/execution/team_lanes.h"

namespace stretto::execution {

// Runs a plan that has messages: between all ranks, or between teams of ranks that reach each
// other's slots.
//
// A chunk is cut into segments; each segment runs the whole list of steps in a lane of its own,
// with scratch of its own, and a few lanes are in flight at a time. So one segment is reduced while
// another is on the wire, and algorithms need not know of it. Within a lane a step starts when the
// steps it depends on have ended (schedule/dependencies.h).
class MessageExecution final : public Execution {
 public:
  // `team` has the shared slots of plans that use some; null for others.
  MessageExecution(std::shared_ptr<const Plan> plan, const Membership& membership,
                   transport::Endpoint& transport, TeamLanes* team = nullptr);

  void start(const Call& call, Turn& turn) override;
  bool advance(Turn& turn) override;
  bool take_completions() override;
  bool ended() const override { return !status_.ok() || segments_left_ == 0; }
  const Status& status() const override { return status_; }
  void fail(const Status& status) override;
  std::size_t idle_bytes() const override { return idle_bytes_; }
  std::vector<Rank> waiting_for() const override;

 private:
  static constexpr std::int32_t kNone = -1;
  struct Lane {
    std::uint32_t segment = 0;
    std::int32_t sync = kNone;        // The step in which it waits for the team.
    std::vector<std::int32_t> waits;  // Per step: how many steps it still waits for.
    // Per step.
    struct Message {
      transport::Request request;
      bool in_flight = false;
    };
    std::vector<Message> messages;
    std::size_t steps_left = 0;
    std::byte* scratch = nullptr;  // Slots that no other rank reaches.
  };
  struct Ready {
    std::uint32_t lane;
    std::int32_t step;
    std::size_t element = 0;  // Elements before it are done.
  };

  std::uint64_t turn_of(std::uint32_t segment) const { return first_turn_ + segment; }
  std::optional<std::uint32_t> free_lane() const;
  void start_segments();
  void start_segment(std::uint32_t lane);
  bool run_ready(Turn& turn);
  bool post_receives(Turn& turn);
  bool end_syncs();
  BufferRef locate(const Lane& lane, const schedule::Place& place) const;
  void run_step(Ready ready, Turn& turn);
  void post(std::uint32_t lane_index, std::int32_t index, Turn& turn);
  void step_done(std::uint32_t lane, std::int32_t step);

  std::shared_ptr<const Plan> plan_;
  const Membership* membership_;
  transport::Endpoint* transport_;
  TeamLanes* team_;
  std::uint64_t first_turn_ = 0;  // The first of the run's turns at the team's lanes.
  LocalSteps local_;
  Call call_;
  std::vector<Lane> lanes_;
  transport::CompletionQueue completions_;  // Of the messages of all lanes.
  std::unique_ptr<std::byte[]> scratch_;    // Of all lanes.
  std::vector<Ready> ready_;                // A stack: depth first keeps a segment in the cache.
  std::size_t idle_bytes_ = 0;
  std::uint32_t next_segment_ = 0;
  std::uint32_t segments_left_ = 0;
  Status status_;
};

}  // namespace stretto::execution
