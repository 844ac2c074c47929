// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "stretto/base/clock.h"
#include "stretto/base/mutex.h"
#include "stretto/base/operation.h"
#include "stretto/base/status.h"
#include "stretto/base/view.h"
#include "stretto/execution/turn.h"
#include "stretto/group/live_state.h"
#include "stretto/group/state_report.h"
#include "stretto/transport/transport.h"

namespace stretto::group {

class PendingOperation;

// Stands for the lock of an engine (EngineLock) where Clang checks who holds it. There is one for
// all engines of a process, because no function uses two.
struct STRETTO_CAPABILITY("the lock of the engine") EngineHeld {};
inline EngineHeld engine_held;

// What an engine runs: a group of ranks.
class Client {
 public:
  virtual std::uint64_t id() const = 0;
  // Whether it was made of that group, or of one that was.
  virtual bool descends_from(std::uint64_t group) const = 0;

  // Does what can be done now, within the turn. Returns whether anything was. The group fails if
  // there is no memory for it.
  virtual bool advance(execution::Turn turn) STRETTO_REQUIRES(engine_held) = 0;
  // Whether something that runs goes on only when it is asked: nothing wakes who sleeps for it.
  virtual bool must_be_asked() const STRETTO_REQUIRES(engine_held) = 0;
  virtual void check_deadlines(TimePoint now) STRETTO_REQUIRES(engine_held) = 0;
  // An exception that unwinds this rank's stack destroys the Work of `operation`, or (null) the
  // communicator. If something that others need of this rank is cut off by it, the group fails and
  // tells them; else they are told when it is destroyed.
  virtual void unwind(const PendingOperation* operation) STRETTO_REQUIRES(engine_held) = 0;
  // Ends it, and all groups that were made of it, here and on the other ranks.
  virtual void abort(const Status& reason) STRETTO_REQUIRES(engine_held) = 0;

  // If all ranks have begun that operation on their devices, has a stream of this rank's (null: the
  // default one) wait for its end, which this thread does not. Returns whether it does.
  virtual bool let_wait(void* stream, const PendingOperation& operation)
      STRETTO_REQUIRES(engine_held) = 0;

  // A group of this rank's has failed.
  virtual void note_failed_group(std::uint64_t group, const Status& reason)
      STRETTO_REQUIRES(engine_held) = 0;

  // What the transport has heard.
  virtual void member_lost(Rank job_rank, const Status& status) STRETTO_REQUIRES(engine_held) = 0;
  virtual void member_left(Rank job_rank, const Status& status) STRETTO_REQUIRES(engine_held) = 0;
  virtual void unexpected_message(Rank from, std::uint32_t sequence,
                                  const OperationDescriptor& operation)
      STRETTO_REQUIRES(engine_held) = 0;
  // `from` waits in what it believes to be operation `sequence`. The group fails if this rank
  // believes otherwise, now or as soon as it knows.
  virtual void asked_about(Rank from, std::uint32_t sequence, const OperationDescriptor& operation)
      STRETTO_REQUIRES(engine_held) = 0;
  // Another has abandoned the group, in that stage; `told` says who and why.
  virtual void aborted(const Status& told, transport::GroupStage stage)
      STRETTO_REQUIRES(engine_held) = 0;
  // The first failure wins: ends everything in flight with it, and every later submission. Tells
  // the others if `announce`.
  virtual void fail(const Status& reason, bool announce) STRETTO_REQUIRES(engine_held) = 0;
  virtual Status agreement_arrived(Rank from, const transport::MessageKey& key,
                                   ConstByteSpan payload) STRETTO_REQUIRES(engine_held) = 0;
  virtual void state_reported(Rank job_rank, std::uint32_t sequence, const std::string& text)
      STRETTO_REQUIRES(engine_held) = 0;

  // An encoded StateReport: where this rank is, seen from operation `sequence` of another.
  virtual std::string describe_state(std::uint32_t sequence, std::string_view activity) const
      STRETTO_REQUIRES(engine_held) = 0;
  // Where this rank waits in this group, for one who asked about another; nothing: nowhere.
  virtual std::optional<StateReport> blocked_state() const STRETTO_REQUIRES(engine_held) = 0;

  // How this rank gets on in the group.
  virtual GroupLiveState live_state(std::string_view activity) const
      STRETTO_REQUIRES(engine_held) = 0;

 protected:
  ~Client() = default;
};

// describe_state() of a rank that does not have the group that it is asked about.
std::string describe_absence(std::span<Client* const> groups, std::string_view activity)
    STRETTO_REQUIRES(engine_held);

}  // namespace stretto::group
