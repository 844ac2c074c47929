// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "stretto/base/collective_library.h"
#include "stretto/base/operation.h"
#include "stretto/base/rank_vector.h"
#include "stretto/base/status.h"
#include "stretto/execution/plan.h"
#include "stretto/execution/turn.h"
#include "stretto/transport/transport.h"

namespace stretto::execution {

// What an execution has to know about its group.
struct Membership {
  std::uint64_t group = 0;
  Rank rank = 0;             // In the group.
  RankVector<Rank> members;  // members[i]: the rank in the job of the group's rank i.

  Rank job_rank(Rank in_group) const { return members[in_group]; }
  // The ranks of the other members in the group.
  std::vector<Rank> others() const {
    std::vector<Rank> ranks;
    for (std::int32_t r = 0; std::cmp_less(r, members.size()); ++r) {
      if (r != rank.value()) ranks.push_back(r);
    }
    return ranks;
  }
};

// The caller's side of one collective.
struct Call {
  OperationDescriptor operation;
  transport::BufferRef input = {};  // Only read.
  transport::BufferRef output = {};
  std::uint32_t sequence = 0;  // Of the group.
  // For buffers of kind device, as in LibraryCall. The parts stay in place until the run has ended.
  const BufferParts* parts = nullptr;
  int mark = -1;
};

// One run of a plan. Reusable: start() after the last run has ended allocates nothing. Not thread
// safe: the caller holds the engine's lock, except where a function says otherwise.
class Execution {
 public:
  virtual ~Execution() = default;
  virtual void start(const Call& call, Turn& turn) = 0;
  // Does what can be done now, within the turn. Returns whether anything was done.
  virtual bool advance(Turn& turn) = 0;
  // Only takes note of messages that have ended; returns whether there were any. The steps that
  // waited for them run in advance().
  virtual bool take_completions() { return false; }
  // Whether the run has ended, well or badly: nobody uses the caller's buffers any more.
  virtual bool ended() const = 0;
  // Why the run has failed. It may have failed before it ends.
  virtual const Status& status() const = 0;
  // Makes a run fail that cannot go on. The transport must have forgotten the group's requests. The
  // run ends here, or in advance() as soon as others have let go of the caller's buffers.
  virtual void fail(const Status& status) = 0;
  // To be called before fail(): ends the run well if it needs nothing more of the transport.
  // Returns whether it has.
  virtual bool end_without_transport() { return false; }
  // Lets go of memory that other ranks may have freed. Returns false if a run is going on.
  virtual bool release_mappings() { return true; }
  // How much memory it keeps while it is idle.
  virtual std::size_t idle_bytes() const { return 0; }
  // The members for which this rank waits, for messages about slow operations.
  virtual std::vector<Rank> waiting_for() const = 0;
  // Whether advance() must be called again and again, since no event wakes a sleeper when the run
  // can go on. All ranks have entered it then, unless its device still stages or it has failed, and
  // a rank that leaves has done its part.
  virtual bool must_be_asked() const { return false; }
  // The end of the run, once all ranks have entered it and it is on this rank's device, which ends
  // it by itself; else null.
  virtual std::shared_ptr<DeviceEnd> end_on_device() const { return nullptr; }
};

}  // namespace stretto::execution
