// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/rank_vector.h"
#include "stretto/execution/window.h"
#include "stretto/group/agreement.h"
#include "stretto/group/fast_lane.h"
#include "stretto/group/inquiry.h"
#include "stretto/group/mailbox.h"
#include "stretto/group/operation_queue.h"
#include "stretto/group/plan_cache.h"
#include "stretto/group/state_report.h"

namespace stretto::group {

// One group of ranks: its collectives (operation_queue.h), their plans and executions
// (plan_cache.h), the fast path without a lock (fast_lane.h), its messages (mailbox.h), and its
// failure together with the other ranks (inquiry.h, agreement.h). Used under the engine's lock,
// except where a comment says otherwise.
class Group {
 public:
  struct Options {
    // Bytes of a segment at most; 0: chosen by the model of the links. The same on all ranks.
    std::size_t segment_bytes = 0;
    // The host of each rank of the job. Empty: all are on one host.
    HostList hosts = {};
    LinkModel links = {};
    // The parent group, its parent, and so on, including those that have been destroyed: an abort
    // of one of them aborts this group as well.
    std::vector<std::uint64_t> ancestors = {};
    std::string name = {};  // The program's name for it, for error messages; any bytes.
    schedule::Verification verification = schedule::Verification::automatic;
  };
  Group(std::shared_ptr<Engine> engine, execution::Membership membership, const Options& options);
  ~Group();

  // Ends the group: no operation can follow. Other ranks may still copy from or to the buffers of
  // its operations until has_ended(), so drive until then. The destructor does both while it holds
  // the lock.
  void leave() STRETTO_REQUIRES(engine_held);
  bool has_ended() const STRETTO_REQUIRES(engine_held);

  // Its plan() and explain() need no lock: release the lock before calling them.
  std::shared_ptr<const Planner> planner() const STRETTO_REQUIRES(engine_held) {
    return cache_.planner();
  }

  // Ends the set-up, whose operations have numbers of their own: the callers' first operation is
  // #1. To be called on all ranks after the same operation. The group fails if a rank has abandoned
  // it during this rank's set-up.
  void begin_numbering() STRETTO_REQUIRES(engine_held);
  // Sets the measured costs of the links. To be called on all ranks before the same operation.
  void use_links(const LinkModel& links) STRETTO_REQUIRES(engine_held);

  std::uint64_t id() const { return membership_.group; }
  const execution::Membership& membership() const { return membership_; }
  int size() const { return static_cast<int>(membership_.members.size()); }
  const Status& failure() const STRETTO_REQUIRES(engine_held) { return failure_; }
  // Whether `group` is an ancestor of this group.
  bool descends_from(std::uint64_t group) const;

  struct Submission {
    OperationDescriptor operation;  // submit() fills in its algorithm.
    ConstByteSpan input = {};
    ByteSpan output = {};
    std::optional<execution::SharesView> shares = std::nullopt;  // Nothing: equal shares.
    std::string_view algorithm = {};                             // Empty: chosen.
    Deadline deadline = {};
    // With a packing, an empty `input` or `output` stands for its scratch.
    std::optional<Packing> packing = std::nullopt;
  };
  // Fails, before anything is sent, if the algorithm does not exist or cannot be used. `held` is
  // the engine's lock. It is released while an operation of a new kind is planned.
  Result<std::shared_ptr<PendingOperation>> submit(Submission& submission, EngineLock& held)
      STRETTO_REQUIRES(engine_held);
  // Does the inline part of a call that has submitted operations on `bytes` bytes of buffers in
  // all: see kInlineBytes.
  void run_inline(std::size_t bytes) STRETTO_REQUIRES(engine_held);
  Result<std::shared_ptr<PendingOperation>> submit(const Mailbox::Message& message)
      STRETTO_REQUIRES(engine_held);

  // The fast path. Its run() needs no lock.
  FastLane& fast_lane() { return lane_; }

  // Lets collectives run on mapped memory from now on: entirely if `windows` are those of all
  // ranks, else inside the team of each host. To be called on all ranks before the same operation.
  void use_windows(execution::Windows windows) STRETTO_REQUIRES(engine_held);
  // Lets `library` run the collectives that it can run from now on. To be called on all ranks
  // before the same operation.
  void use_library(std::shared_ptr<CollectiveLibrary> library) STRETTO_REQUIRES(engine_held);
  // Lets `queue` run collectives on memory of the ranks' devices from now on. `devices` has the
  // number of each rank's device (processors.h). To be called on all ranks before the same
  // operation, and not together with a library for devices.
  void use_device(std::unique_ptr<execution::KernelQueue> queue, std::vector<std::int32_t> devices)
      STRETTO_REQUIRES(engine_held);
  // Whether all ranks are one team.
  bool is_one_team() const STRETTO_REQUIRES(engine_held) { return cache_.is_one_team(); }

  // Takes part in an agreement on who is lost, or goes on with the one under way, and tells the
  // other members who is lost as far as this rank knows: see Agreement and group_agreement.cc.
  // Works after the group has failed, too. The other members wait in their agreement until this
  // rank calls it.
  void begin_agreement(const std::vector<Rank>& left_out, bool ready) STRETTO_REQUIRES(engine_held);
  // Whether agreed() has a decision, or this rank was left out.
  bool agreement_ended() const STRETTO_REQUIRES(engine_held);
  // The decision, which is returned once. Fails with aborted if this rank was left out, else with
  // timeout, naming the late ranks; `deadline` is only used to say how long this rank has waited.
  Result<Proposal> agreed(const Deadline& deadline) STRETTO_REQUIRES(engine_held);
  std::uint32_t agreement_number() const { return agreement_.number(); }
  // Asks the late ranks where they are, for the error message of agreed().
  void ask_late_in_agreement() STRETTO_REQUIRES(engine_held);

  // Moves its operations along, within the turn. Returns whether anything moved. The group fails if
  // memory runs out.
  bool advance(execution::Turn turn) STRETTO_REQUIRES(engine_held);
  // Whether a running operation goes on only when it is polled: nothing wakes a thread that sleeps
  // until it ends.
  bool must_be_asked() const STRETTO_REQUIRES(engine_held);
  void check_deadlines(TimePoint now) STRETTO_REQUIRES(engine_held);
  // An exception that unwinds this rank's stack destroys the Work of `operation` or, if that is
  // null, the communicator. If an operation has not ended by then, the group fails and tells the
  // other ranks; otherwise they hear of it when the group is destroyed.
  void unwind(const PendingOperation* operation) STRETTO_REQUIRES(engine_held);
  // Ends this group and its descendants, on this rank and on the others.
  void abort(const Status& reason) STRETTO_REQUIRES(engine_held);
  // Ends everything in flight, and every later submission, with `reason`. Does nothing if the group
  // has failed already. Tells the other members if `announce`.
  void fail(const Status& reason, bool announce) STRETTO_REQUIRES(engine_held);
  // Until begin_numbering() this group fails when `parent` fails, and at once if `parent` has
  // failed already: a rank whose parent group fails before it begins the set-up never answers the
  // ranks that wait in the set-up.
  void fail_with_until_set_up(const Group& parent) STRETTO_REQUIRES(engine_held);
  // Another group of this rank has failed.
  void note_failed_group(std::uint64_t group, const Status& reason) STRETTO_REQUIRES(engine_held);
  // The end of `operation` on this rank's device, once all ranks have entered it and the device
  // runs it; else null.
  std::shared_ptr<DeviceEnd> end_on_device(const PendingOperation& operation) const
      STRETTO_REQUIRES(engine_held) {
    return operations_.end_on_device(operation);
  }

  // The transport's news, passed on by the engine.
  void member_lost(Rank job_rank, const Status& status) STRETTO_REQUIRES(engine_held);
  void member_left(Rank job_rank, const Status& status) STRETTO_REQUIRES(engine_held);
  void unexpected_message(Rank from, std::uint32_t sequence, const OperationDescriptor& operation)
      STRETTO_REQUIRES(engine_held);
  // `from` waits in operation `sequence`, which it believes to be `operation`. The group fails if
  // this rank runs another one under that number, now or later.
  void asked_about(Rank from, std::uint32_t sequence, const OperationDescriptor& operation)
      STRETTO_REQUIRES(engine_held);
  // `from` has abandoned the group, in that stage. `told` says which rank abandoned it first and
  // why.
  void aborted(Rank from, const Status& told, transport::GroupStage stage)
      STRETTO_REQUIRES(engine_held);
  Status agreement_arrived(Rank from, const transport::MessageKey& key, ConstByteSpan payload)
      STRETTO_REQUIRES(engine_held);
  void state_reported(Rank job_rank, std::uint32_t sequence, const std::string& text)
      STRETTO_REQUIRES(engine_held);

  // An encoded StateReport that says where this rank is, for a rank that waits in operation
  // `sequence`.
  std::string describe_state(std::uint32_t sequence, std::string_view activity) const
      STRETTO_REQUIRES(engine_held);
  // Where this rank waits in this group, for a rank that asked about another group. Nothing: it
  // waits nowhere in this group.
  std::optional<StateReport> blocked_state() const STRETTO_REQUIRES(engine_held);
  // How this rank gets on in the group.
  GroupLiveState live_state(std::string_view activity) const STRETTO_REQUIRES(engine_held);

 private:
  // What a waiting rank believes an operation to be that this rank has not begun.
  struct Belief {
    Rank from = 0;  // In the job.
    std::uint32_t sequence = 0;
    OperationDescriptor operation;
  };
  // The sequence of inquiries about agreements.
  static constexpr std::uint32_t kAgreementSequence = 0xfffffffe;

  Result<PlanCache::Entry*> entry_for(Submission& submission, EngineLock& held)
      STRETTO_REQUIRES(engine_held) STRETTO_UNCHECKED_LOCKING;
  Status prepare(PlanCache::Entry& entry, Submission& submission) STRETTO_REQUIRES(engine_held);
  void shrink_cache() STRETTO_REQUIRES(engine_held);
  void release_mappings() STRETTO_REQUIRES(engine_held);
  void open_lane() STRETTO_REQUIRES(engine_held);
  bool retire_messages() STRETTO_REQUIRES(engine_held);

  // Failures: group_failure.cc.
  void tell_what_has_failed() STRETTO_REQUIRES(engine_held);
  void tell_last_operation() STRETTO_REQUIRES(engine_held);
  void check_departed() STRETTO_REQUIRES(engine_held);
  bool compare(const Belief& belief) STRETTO_REQUIRES(engine_held);
  void compare_beliefs() STRETTO_REQUIRES(engine_held);
  void disagree(const Belief& belief, const OperationDescriptor& ours)
      STRETTO_REQUIRES(engine_held);
  std::string_view way_out(std::optional<Rank> lost) const STRETTO_REQUIRES(engine_held);
  void fail_telling(const Status& reason, const Status* told, bool by_others = false)
      STRETTO_REQUIRES(engine_held);
  void abort_telling(const Status& reason, const Status& told, bool by_others = false)
      STRETTO_REQUIRES(engine_held);
  void announce(const Status& told) STRETTO_REQUIRES(engine_held);
  Status abandoned(const Status& cause) const;
  void note_departed(Rank member, const Status& status) STRETTO_REQUIRES(engine_held);
  void send_agreement() STRETTO_REQUIRES(engine_held);

  // Reports about itself: group_report.cc.
  const PendingOperation* oldest() const STRETTO_REQUIRES(engine_held);
  Status named(const Status& failure) const;
  std::string of_group() const;
  std::string name_of(const PendingOperation& operation) const STRETTO_REQUIRES(engine_held);
  Status in_context(const PendingOperation* operation, const Status& cause) const
      STRETTO_REQUIRES(engine_held);
  std::vector<Rank> waiting_for(const PendingOperation& operation) const
      STRETTO_REQUIRES(engine_held);
  void ask_others(const PendingOperation& operation, TimePoint now) STRETTO_REQUIRES(engine_held);
  void warn(const PendingOperation& operation, TimePoint now) const STRETTO_REQUIRES(engine_held);
  Status timed_out(const PendingOperation& operation) const STRETTO_REQUIRES(engine_held);
  std::string describe_standstill(TimePoint since) const STRETTO_REQUIRES(engine_held);
  std::vector<Rank> in_job(std::vector<Rank> members) const STRETTO_REQUIRES(engine_held);
  StateReport state_in(std::string_view group, std::string_view activity) const
      STRETTO_REQUIRES(engine_held);

  std::shared_ptr<Engine> engine_;
  execution::Membership membership_;
  const std::vector<std::uint64_t> ancestors_;
  const std::string name_;  // For error messages: group "dp". May be empty.
  PlanCache cache_;
  OperationQueue operations_;
  FastLane lane_;
  Mailbox mailbox_;
  Inquiry inquiry_;
  Agreement agreement_;
  std::vector<Belief> beliefs_ STRETTO_GUARDED_BY(engine_held);
  // Per member: why it takes part in no operation any more; ok while it does.
  RankVector<Status> departed_;
  bool any_departed_ = false;
  transport::Farewell farewell_ = transport::Farewell::in_order;
  bool is_leaving_ = false;              // Whether leave() was called.
  std::uint64_t memory_generation_ = 0;  // At the last complete release_mappings().
  Status failure_ STRETTO_GUARDED_BY(engine_held);
  bool is_aborted_ STRETTO_GUARDED_BY(engine_held) = false;  // With its descendants.
  // Why another rank, which has finished the set-up, has abandoned the group while this rank is
  // still in the set-up.
  Status told_in_set_up_ STRETTO_GUARDED_BY(engine_held);
  std::optional<std::uint64_t> parent_in_set_up_ STRETTO_GUARDED_BY(engine_held);
};

// Stands in for describe_state() on a rank that does not have the group in question.
std::string describe_absence(std::span<Group* const> groups, std::string_view activity)
    STRETTO_REQUIRES(engine_held);

}  // namespace stretto::group
