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

// For whom an operation waits, and who in the job is at fault, if it is one.
struct Late {
  std::vector<Rank> ranks = {};
  std::optional<Rank> culprit = std::nullopt;
};

// The rank of a group that a rank of the job is.
std::optional<Rank> rank_in_group(const execution::Membership& membership, Rank job_rank);

// What a rank has last asked the others of its group, which keep an operation of its waiting, and
// what they have answered so far: from that follows who is late. Under the engine's lock.
class Inquiry {
 public:
  // Both must outlive it.
  Inquiry(Engine& engine, const execution::Membership& membership)
      : engine_(&engine), membership_(&membership) {}

  // Forgets the answers to the one before, unless that is so new that its answers still count and
  // `may_wait`.
  void begin(std::uint32_t sequence, const OperationDescriptor& operation, TimePoint now,
             bool may_wait = false) STRETTO_REQUIRES(engine_held);
  // Tells a member what this rank waits in, which may be news to it, and asks where it is.
  void ask(Rank member, std::uint32_t sequence, const OperationDescriptor& operation)
      STRETTO_REQUIRES(engine_held);
  // Those for whom it waits; everybody about a collective in a group of bearable size, and about a
  // monitored barrier in any.
  void ask_about(std::uint32_t sequence, const OperationDescriptor& operation,
                 const std::vector<Rank>& waited_for) STRETTO_REQUIRES(engine_held);
  // An answer. Who waits for others leads to those at the root of it, who are asked, too.
  void take(Rank member, std::uint32_t sequence, const std::string& text)
      STRETTO_REQUIRES(engine_held);

  // Whether the answers are about this operation.
  bool is_about(std::uint32_t sequence) const { return sequence_ == sequence && !answers_.empty(); }
  // Those who say that they have not entered the operation, and with them those who say nothing at
  // the end of the chain of ranks that wait for each other. If nobody says so, those at the end of
  // the chain; of a message, its other end as well.
  Late find_late(std::uint32_t sequence, const std::vector<Rank>& waited_for) const;
  // From rank to rank, by whom each says that it waits for: those who wait for nobody or say
  // nothing. Where all wait for each other, those from whom it began.
  std::vector<Rank> roots_of(std::vector<Rank> waited_for) const;
  // In their own words, if they have been asked about this operation last.
  std::string describe_late(std::uint32_t sequence, const std::vector<Rank>& late) const;
  // ", and 900.0 KiB for rank 3 are still under way, ...": what moves between this rank and that
  // one of the job, or waits for the network; empty if that is nothing, or not known.
  std::string describe_traffic(Rank job_rank) const;
  // "; 30 of 31 others have arrived", where that is known.
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
// In milliseconds where seconds would say nothing.
std::string waited(Duration duration);

}  // namespace stretto::group
