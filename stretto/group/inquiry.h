// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "stretto/base/rank_vector.h"
#include "stretto/execution/execution.h"
#include "stretto/group/engine.h"
#include "stretto/group/state_report.h"

namespace stretto::group {

// The ranks of a group for which an operation waits, and the rank of the job at fault, if there is
// exactly one.
struct Late {
  std::vector<Rank> ranks = {};
  std::optional<Rank> culprit = std::nullopt;
};

// The group's rank of a rank of the job. Nothing: it is not in the group.
std::optional<Rank> rank_in_group(const execution::Membership& membership, Rank job_rank);

// A rank's last question to the other members of its group about an operation that waits for them,
// and their answers so far. It finds out which members are late. Used under the engine's lock.
class Inquiry {
 public:
  // `engine` and `membership` must outlive it.
  Inquiry(Engine& engine, const execution::Membership& membership)
      : engine_(&engine), membership_(&membership) {}

  // Begins a new inquiry and forgets the answers to the last one. Does nothing if `may_wait` and
  // the last one is so recent that its answers still count.
  void begin(std::uint32_t sequence, const OperationDescriptor& operation, TimePoint now,
             bool may_wait = false) STRETTO_REQUIRES(engine_held);
  // Asks a member where it is, and tells it in which operation this rank waits.
  void ask(Rank member, std::uint32_t sequence, const OperationDescriptor& operation)
      STRETTO_REQUIRES(engine_held);
  // Asks the members in `waited_for`. Asks all members about a collective if the group has at most
  // 64 ranks, and about a monitored barrier in any group.
  void ask_about(std::uint32_t sequence, const OperationDescriptor& operation,
                 const std::vector<Rank>& waited_for) STRETTO_REQUIRES(engine_held);
  // Takes a member's answer. If that member waits for others, those are asked, too.
  void take(Rank member, std::uint32_t sequence, const std::string& text)
      STRETTO_REQUIRES(engine_held);

  // Whether the answers are about this operation.
  bool is_about(std::uint32_t sequence) const { return sequence_ == sequence && !answers_.empty(); }
  // The late ranks. These are the members that say that they have not entered the operation, and
  // those at the end of a chain of waiting ranks that have not answered. If no member says so, they
  // are the members at the end of the chain; for a message its peer as well.
  Late find_late(std::uint32_t sequence, const std::vector<Rank>& waited_for) const;
  // Follows the answers from each rank to those it waits for. Returns the ranks at the end, which
  // wait for nobody or have not answered. If all wait for each other, returns `waited_for`.
  std::vector<Rank> roots_of(std::vector<Rank> waited_for) const;
  // Describes the members in `late`, with their answers if the last inquiry was about this
  // operation.
  std::string describe_late(std::uint32_t sequence, const std::vector<Rank>& late) const;
  // ", and 900.0 KiB for rank 3 are still under way, ...": the bytes that move, or wait for the
  // network, between this rank and `job_rank`. Empty if there are none or it is not known.
  std::string describe_traffic(Rank job_rank) const;
  // "; 30 of 31 others have arrived"; empty if it is not known.
  std::string describe_arrived(std::uint32_t sequence) const;

 private:
  int size() const { return static_cast<int>(membership_->members.size()); }

  Engine* engine_;
  const execution::Membership* membership_;
  std::uint32_t sequence_ = 0;
  OperationDescriptor operation_;
  TimePoint at_ = TimePoint::min();
  RankVector<std::optional<StateReport>> answers_;
};

// "1.5 s".
std::string in_seconds(Duration duration);
// "850 ms" below a second, else "1.5 s".
std::string waited(Duration duration);

}  // namespace stretto::group
