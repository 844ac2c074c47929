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

// One group of ranks: its collectives (operation_queue.h) and what they run with (plan_cache.h),
// the lane of those that need no lock (fast_lane.h), its messages (mailbox.h), and how it fails,
// together with the others (inquiry.h, agreement.h). Everything here happens under the engine's
// lock, but for what is said otherwise.
class Group {
 public:
  struct Options {
    // Bytes of a chunk that travel at a time; 0: chosen. The same on all ranks.
    std::size_t segment_bytes = 0;
    // Of all ranks of the job. Empty: all are on one.
    HostList hosts = {};
    LinkModel links = {};
    // The group of which this one was made, the one of which that was made, and so on, whether they
    // are still there or not: an abort of one of them reaches this one.
    std::vector<std::uint64_t> ancestors = {};
    std::string name = {};  // As the program calls it, for texts; any bytes.
    schedule::Verification verification = schedule::Verification::automatic;
  };
  Group(std::shared_ptr<Engine> engine, execution::Membership membership, const Options& options);
  ~Group();

  // Ends all operations, for good. Other ranks may still copy from or to their buffers until
  // has_ended(): drive until then. The destructor does both, and holds the lock meanwhile.
  void leave() STRETTO_REQUIRES(engine_held);
  bool has_ended() const STRETTO_REQUIRES(engine_held);

  // Says with which algorithms an operation would run, and why: with the lock not held any more.
  std::shared_ptr<const Planner> planner() const STRETTO_REQUIRES(engine_held) {
    return cache_.planner();
  }

  // What comes from now on is the callers': their first operation is #1. What a group does to be
  // set up has numbers of its own. On all ranks after the same operation. The group fails if one of
  // them has abandoned it since.
  void begin_numbering() STRETTO_REQUIRES(engine_held);
  // Tells what the links cost, once it has been measured. On all ranks before the same operation.
  void use_links(const LinkModel& links) STRETTO_REQUIRES(engine_held);

  std::uint64_t id() const { return membership_.group; }
  const execution::Membership& membership() const { return membership_; }
  int size() const { return static_cast<int>(membership_.members.size()); }
  const Status& failure() const STRETTO_REQUIRES(engine_held) { return failure_; }
  // Whether it was made of that group, or of one that was.
  bool descends_from(std::uint64_t group) const;

  struct Submission {
    OperationDescriptor operation;  // algorithm is filled in here.
    ConstByteSpan input = {};
    ByteSpan output = {};
    std::optional<execution::SharesView> shares = std::nullopt;  // Nothing: equal ones.
    std::string_view algorithm = {};                             // Empty: chosen.
    Deadline deadline = {};
    // With one, `input` or `output`, if empty, is its scratch.
    std::optional<Packing> packing = std::nullopt;
  };
  // Fails, before anything is sent, if the algorithm does not exist or cannot be used. `held` is
  // the engine's lock, which is let go of while an operation of a new kind is planned.
  Result<std::shared_ptr<PendingOperation>> submit(Submission& submission, EngineLock& held)
      STRETTO_REQUIRES(engine_held);
  // Does what a call does itself that has submitted operations on so many bytes of buffers, all of
  // them together: see kInlineBytes.
  void run_inline(std::size_t bytes) STRETTO_REQUIRES(engine_held);
  Result<std::shared_ptr<PendingOperation>> submit(const Mailbox::Message& message)
      STRETTO_REQUIRES(engine_held);

  // For what takes the fast path.
  FastLane& fast_lane() { return lane_; }

  // Lets collectives run on mapped memory from now on: wholly, where `windows` are everybody's,
  // else inside teams. On all ranks before the same operation.
  void use_windows(execution::Windows windows) STRETTO_REQUIRES(engine_held);
  // Lets a library run, from now on, what it can. On all ranks before the same operation.
  void use_library(std::shared_ptr<CollectiveLibrary> library) STRETTO_REQUIRES(engine_held);
  // Lets `queue` run, from now on, what is in memory of the ranks' devices, which `devices` numbers
  // (processors.h). On all ranks before the same operation, and not where a library has that.
  void use_device(std::unique_ptr<execution::KernelQueue> queue, std::vector<std::int32_t> devices)
      STRETTO_REQUIRES(engine_held);
  // Whether all ranks are one team.
  bool is_one_team() const STRETTO_REQUIRES(engine_held) { return cache_.is_one_team(); }

  // Tells the others who is lost, as far as is known here, and takes part in an agreement on it, or
  // goes on with the one that is under way: see Agreement, and group_agreement.cc. Works, and is of
  // use, after the group has failed; without begin_agreement() others wait for this rank.
  void begin_agreement(const std::vector<Rank>& left_out, bool ready) STRETTO_REQUIRES(engine_held);
  // Whether agreed() has something to say.
  bool agreement_ended() const STRETTO_REQUIRES(engine_held);
  // The decision, once; or why there is none: this rank was left out, or others are late.
  Result<Proposal> agreed(const Deadline& deadline) STRETTO_REQUIRES(engine_held);
  std::uint32_t agreement_number() const { return agreement_.number(); }
  // Asks those who are late where they are, for the text of agreed().
  void ask_late_in_agreement() STRETTO_REQUIRES(engine_held);

  // Does what can be done now, within the turn. Returns whether anything was. The group fails if
  // there is no memory for it.
  bool advance(execution::Turn turn) STRETTO_REQUIRES(engine_held);
  // Whether something that runs goes on only when it is asked: nothing wakes who sleeps for it.
  bool must_be_asked() const STRETTO_REQUIRES(engine_held);
  void check_deadlines(TimePoint now) STRETTO_REQUIRES(engine_held);
  // An exception that unwinds this rank's stack destroys the Work of `operation`, or (null) the
  // communicator. If something that others need of this rank is cut off by it, the group fails and
  // tells them; else they are told when it is destroyed.
  void unwind(const PendingOperation* operation) STRETTO_REQUIRES(engine_held);
  // Ends it, and all groups that were made of it, here and on the other ranks.
  void abort(const Status& reason) STRETTO_REQUIRES(engine_held);
  // The first failure wins: ends everything in flight with it, and every later submission. Tells
  // the others if `announce`.
  void fail(const Status& reason, bool announce) STRETTO_REQUIRES(engine_held);
  // Until begin_numbering() this group fails with `parent`, of which it is made, and at once if
  // that has failed meanwhile: a rank whose parent fails before it begins the set-up never answers
  // those that wait in it.
  void fail_with_until_set_up(const Group& parent) STRETTO_REQUIRES(engine_held);
  // A group of this rank's has failed.
  void note_failed_group(std::uint64_t group, const Status& reason) STRETTO_REQUIRES(engine_held);
  // The end of that operation on this rank's device, once all ranks have entered it and it is
  // there; else null.
  std::shared_ptr<DeviceEnd> end_on_device(const PendingOperation& operation) const
      STRETTO_REQUIRES(engine_held) {
    return operations_.end_on_device(operation);
  }

  // What the transport has heard.
  void member_lost(Rank job_rank, const Status& status) STRETTO_REQUIRES(engine_held);
  void member_left(Rank job_rank, const Status& status) STRETTO_REQUIRES(engine_held);
  void unexpected_message(Rank from, std::uint32_t sequence, const OperationDescriptor& operation)
      STRETTO_REQUIRES(engine_held);
  // `from` waits in what it believes to be operation `sequence`. The group fails if this rank
  // believes otherwise, now or as soon as it knows.
  void asked_about(Rank from, std::uint32_t sequence, const OperationDescriptor& operation)
      STRETTO_REQUIRES(engine_held);
  // `from` has abandoned the group, in that stage; `told` says which rank abandoned it first, and
  // why.
  void aborted(Rank from, const Status& told, transport::GroupStage stage)
      STRETTO_REQUIRES(engine_held);
  Status agreement_arrived(Rank from, const transport::MessageKey& key, ConstByteSpan payload)
      STRETTO_REQUIRES(engine_held);
  void state_reported(Rank job_rank, std::uint32_t sequence, const std::string& text)
      STRETTO_REQUIRES(engine_held);

  // An encoded StateReport: where this rank is, seen from operation `sequence` of another.
  std::string describe_state(std::uint32_t sequence, std::string_view activity) const
      STRETTO_REQUIRES(engine_held);
  // Where this rank waits in this group, for one who asked about another; nothing: nowhere.
  std::optional<StateReport> blocked_state() const STRETTO_REQUIRES(engine_held);
  // How this rank gets on in the group.
  GroupLiveState live_state(std::string_view activity) const STRETTO_REQUIRES(engine_held);

 private:
  // What another rank, which waits, believes an operation to be that this rank has not begun.
  struct Belief {
    Rank from = 0;  // In the job.
    std::uint32_t sequence = 0;
    OperationDescriptor operation;
  };
  // In inquiries: about agreements.
  static constexpr std::uint32_t kAgreementSequence = 0xfffffffe;

  Result<PlanCache::Entry*> entry_for(Submission& submission, EngineLock& held)
      STRETTO_REQUIRES(engine_held) STRETTO_UNCHECKED_LOCKING;
  Status prepare(PlanCache::Entry& entry, Submission& submission) STRETTO_REQUIRES(engine_held);
  void shrink_cache() STRETTO_REQUIRES(engine_held);
  void release_mappings() STRETTO_REQUIRES(engine_held);
  void open_lane() STRETTO_REQUIRES(engine_held);
  bool retire_messages() STRETTO_REQUIRES(engine_held);

  // How it fails: group_failure.cc.
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

  // What it says of itself: group_report.cc.
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
  const std::string name_;  // In texts: group "dp". May be empty.
  PlanCache cache_;
  OperationQueue operations_;
  FastLane lane_;
  Mailbox mailbox_;
  Inquiry inquiry_;
  Agreement agreement_;
  std::vector<Belief> beliefs_ STRETTO_GUARDED_BY(engine_held);
  // Why a member takes part in no operation any more; ok while it does.
  RankVector<Status> departed_;
  bool any_departed_ = false;
  transport::Farewell farewell_ = transport::Farewell::in_order;
  bool is_leaving_ = false;              // This rank, in good order or not.
  std::uint64_t memory_generation_ = 0;  // When release_mappings() was called last.
  Status failure_ STRETTO_GUARDED_BY(engine_held);
  bool is_aborted_ STRETTO_GUARDED_BY(engine_held) = false;  // With all groups made of it.
  // Why another, which has set the group up, has abandoned it while this rank still sets it up.
  Status told_in_set_up_ STRETTO_GUARDED_BY(engine_held);
  std::optional<std::uint64_t> parent_in_set_up_ STRETTO_GUARDED_BY(engine_held);
};

// describe_state() of a rank that does not have the group that it is asked about.
std::string describe_absence(std::span<Group* const> groups, std::string_view activity)
    STRETTO_REQUIRES(engine_held);

}  // namespace stretto::group
