// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/ring_queue.h"
#include "stretto/execution/execution.h"
#include "stretto/execution/team_lanes.h"
#include "stretto/execution/window.h"
#include "stretto/group/agreement.h"
#include "stretto/group/mailbox.h"
#include "stretto/group/past_operations.h"
#include "stretto/group/pending.h"
#include "stretto/group/planner.h"
#include "stretto/group/state_report.h"

namespace stretto::group {

// One group of ranks: its queue of collectives, the executions it has used, and its windows.
// Everything here happens under the engine's lock.
//
// Collectives run in the order of submission: those on mapped memory one at a time, those by
// messages a few at a time, so that on a network the latency of one hides behind the bytes of
// another.
class Group final : public Client {
 public:
  struct Options {
    // Bytes of a chunk that travel at a time; 0: chosen. The same on all ranks.
    std::size_t segment_bytes = 0;
    // Of all ranks of the job. Empty: all are on one.
    HostList hosts = {};
    LinkModel links = {};
    schedule::Verification verification = schedule::Verification::automatic;
  };
  // Says with which algorithms an operation would run, and why. To be used without the lock.
  std::shared_ptr<const Planner> planner() const { return planner_; }

  // What comes from now on is the callers': their first operation is #1. What a group does to be
  // set up has numbers of its own. On all ranks after the same operation.
  void begin_numbering();
  // Tells what the links cost, once it has been measured. On all ranks before the same operation.
  void use_links(const LinkModel& links);
  Group(std::shared_ptr<Engine> engine, execution::Membership membership, Options options);
  ~Group();

  std::uint64_t id() const override { return membership_.group; }
  const execution::Membership& membership() const { return membership_; }
  int size() const { return static_cast<int>(membership_.members.size()); }
  std::optional<Rank> rank_in_group(Rank job_rank) const;
  const Status& failure() const { return failure_; }

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
  Result<std::shared_ptr<PendingOperation>> submit(Submission& submission,
                                                   std::unique_lock<std::mutex>& held);
  Result<std::shared_ptr<PendingOperation>> submit(const Mailbox::Message& message);

  // The fast path, without the engine's lock: a collective with equal shares, of no named
  // algorithm, that needs nothing but what a call before has left behind. Any thread. See Note
  // [fast path].
  struct FastCall {
    const OperationDescriptor& operation;
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
    Duration timeout{};
  };
  enum class FastOutcome {
    refused,  // Nothing has happened: submit() it.
    ended,    // Well.
    parked,   // Begun; the rest is for adopt_parked(), which is now to be called.
  };
  // `parked`: the operation, if it was parked. `number`: which collective it was, if it has ended.
  FastOutcome try_fast(const FastCall& call, std::shared_ptr<PendingOperation>& parked,
                       std::uint32_t& number);
  // Makes a parked operation an ordinary one. Nothing if somebody has done so already.
  void adopt_parked();

  // Lets collectives run on mapped memory from now on: wholly, where `windows` are everybody's,
  // else inside teams. On all ranks before the same operation.
  void use_windows(execution::Windows windows);
  // Whether all ranks are one team.
  bool is_one_team() const { return windows_ && windows_->are_everybodys(); }

  // Tells the others who is lost, as far as is known here, and takes part in an agreement on it, or
  // goes on with the one that is under way: see Agreement, and group_agreement.cc. Works, and is of
  // use, after the group has failed; without begin_agreement() others wait for this rank.
  void begin_agreement(const std::vector<Rank>& left_out, bool ready);
  // Whether agreed() has something to say.
  bool agreement_ended() const;
  // The decision, once; or why there is none: this rank was left out, or others are late.
  Result<Proposal> agreed(const Deadline& deadline);
  std::uint32_t agreement_number() const { return agreement_.number(); }
  // Asks those who are late where they are, for the text of agreed().
  void ask_late_in_agreement();

  bool advance(execution::Turn turn) override;
  void check_deadlines(TimePoint now) override;
  void unwind(const PendingOperation* operation) override;
  void member_lost(Rank job_rank, const Status& status) override;
  void member_left(Rank job_rank, const Status& status) override;
  void message_early(Rank from, std::uint32_t sequence,
                     const OperationDescriptor& operation) override;
  void asked_about(Rank from, std::uint32_t sequence,
                   const OperationDescriptor& operation) override;
  void aborted(const Status& told) override;
  Status agreement_arrived(Rank from, const transport::MessageKey& key,
                           ConstByteSpan payload) override;
  void state_reported(Rank job_rank, std::uint32_t sequence, const std::string& text) override;
  std::string describe_state(std::uint32_t sequence, std::string_view activity) const override;
  std::optional<StateReport> whereabouts_elsewhere() const override;

  // The first failure wins: ends everything in flight with it, and every later submission. Tells
  // the others if `announce`.
  void fail(const Status& reason, bool announce);

 private:
  struct CacheKey {
    OperationDescriptor operation;
    std::uint64_t shares = 0;
    bool in_windows = false;
    bool operator<(const CacheKey& other) const;
  };
  // What a kind of operation needs, kept from one call to the next.
  struct CacheEntry {
    std::function<std::unique_ptr<execution::Execution>()> make;
    bool runs_alone = false;  // On the windows, whose counters are of one operation at a time.
    execution::Shares shares;
    // The first one stays; it is the only one where they run alone.
    std::vector<std::unique_ptr<execution::Execution>> idle;
    int in_use = 0;  // Operations that are queued or run.
  };
  struct Running {
    std::shared_ptr<PendingCollective> collective;
    std::unique_ptr<execution::Execution> execution;
    CacheEntry* entry = nullptr;
  };
  struct Queued {
    std::shared_ptr<PendingCollective> collective;
    CacheEntry* entry = nullptr;
  };
  // What another rank, which waits, believes an operation to be that this rank has not begun.
  struct Belief {
    Rank from = 0;  // In the job.
    std::uint32_t sequence = 0;
    OperationDescriptor operation;
  };
  // A kind of operation that the fast path knows.
  struct Recent {
    OperationDescriptor operation;
    CacheEntry* entry = nullptr;
  };
  static constexpr std::size_t kRecent = 8;
  // Collectives by messages that run at the same time in one group.
  static constexpr std::size_t kRunningMax = 4;
  // To whom the collectives of the group, their sequence and their windows belong.
  enum class Gate {
    closed,  // Whoever holds the engine: something is in flight, being set up, or has failed.
    open,    // Nobody: nothing is in flight.
    fast,    // A thread on the fast path.
    parked,  // Whoever holds the engine next, who has to adopt parked_ first.
  };
  // In inquiries: about agreements.
  static constexpr std::uint32_t kAgreementSequence = 0xfffffffe;

  Result<CacheEntry*> entry_for(Submission& submission, std::unique_lock<std::mutex>& held);
  Result<CacheEntry*> find_entry(const CacheKey& key, const Submission& submission);
  CacheEntry& add_entry(const CacheKey& key, const Submission& submission, Plans plans);
  template <class Change>
  void change_planning(const Change& change);
  void shrink_cache();
  std::shared_ptr<PendingCollective> pooled();
  Status borrow_scratch(Submission& submission);
  Status check_buffers(const CacheEntry& entry, const Submission& submission) const;

  Recent* find_recent(const OperationDescriptor& operation);
  void remember(const PendingCollective& collective, CacheEntry& entry);
  void release_mappings();
  void close_gate();
  void open_gate();

  std::size_t inline_turn_bytes(bool runs_inline) const;
  bool start_ready(execution::Turn& turn);
  std::unique_ptr<execution::Execution> take_execution(CacheEntry& entry);
  bool may_start(const Queued& queued) const;
  void report(const PendingCollective& collective);
  void report_ended(std::uint32_t ended);
  void retire(std::size_t index);
  void keep_idle(CacheEntry& entry, std::unique_ptr<execution::Execution> execution);
  void count_idle();
  bool retire_messages();
  void tell_what_has_failed();
  void tell_last_operation();
  void check_departed();
  const PendingOperation* oldest() const;
  bool has_ended(std::uint32_t sequence) const;
  bool is_of_this_numbering(std::uint32_t sequence) const;
  bool is_running(std::uint32_t sequence) const { return running_operation(sequence) != nullptr; }
  const OperationDescriptor* running_operation(std::uint32_t sequence) const;
  bool compare(const Belief& belief);
  void compare_beliefs();
  void disagree(const Belief& belief, const OperationDescriptor& ours);
  void fail_telling(const Status& reason, const Status* told, bool by_others = false);
  bool end_on_own(Running& running);
  void note_departed(Rank member, const Status& status);
  void send_agreement();

  Status in_context(const PendingOperation* operation, const Status& cause) const;
  std::string name_of(const PendingOperation& operation) const;
  std::string name_of_ended() const;
  std::string between_operations() const;
  std::vector<Rank> waiting_for(const PendingOperation& operation) const;
  void ask_others(const PendingOperation& operation, TimePoint now);
  void warn(const PendingOperation& operation, TimePoint now) const;
  Status timed_out(const PendingOperation& operation) const;
  bool has_answers(const PendingOperation& operation) const {
    return inquiry_.sequence == operation.sequence() && !inquiry_.answers.empty();
  }
  const std::optional<StateReport>& answer_of(Rank member) const {
    return inquiry_.answers[static_cast<std::size_t>(member)];
  }
  void ask(Rank member, std::uint32_t sequence, const OperationDescriptor& operation);
  void begin_inquiry(std::uint32_t sequence, const OperationDescriptor& operation, TimePoint now);
  Late find_late(const PendingOperation& operation) const;
  std::vector<Rank> roots_of(std::vector<Rank> waited_for) const;
  std::string describe_late(const std::vector<Rank>& late, bool answered) const;
  std::string describe_arrived(const PendingOperation& operation) const;
  std::string describe_standstill(TimePoint since) const;
  std::vector<Rank> in_job(std::vector<Rank> members) const;
  StateReport whereabouts(std::string_view group, std::string_view activity) const;

  std::shared_ptr<Engine> engine_;
  execution::Membership membership_;
  Options options_;
  std::shared_ptr<const Planner> planner_;
  std::optional<execution::Windows> windows_;
  std::optional<execution::TeamLanes> team_lanes_;  // In windows_, where those are not everybody's.
  std::map<CacheKey, CacheEntry> cache_;
  std::size_t idle_bytes_ = 0;
  std::vector<Running> running_;
  RingQueue<Queued> queue_;
  Mailbox mailbox_;
  ScratchPool scratch_;
  std::vector<std::shared_ptr<PendingCollective>> pool_;  // Reused when nobody else holds them.
  PastOperations past_;
  std::vector<Belief> beliefs_;
  // Per member: why it takes part in no operation any more; ok while it does.
  std::vector<Status> departed_;
  bool any_departed_ = false;
  transport::Farewell farewell_ = transport::Farewell::in_order;
  Agreement agreement_;
  std::atomic<Gate> gate_{Gate::closed};
  Queued parked_;
  std::array<Recent, kRecent> recent_;
  std::size_t next_recent_ = 0;
  Recent* last_recent_ = recent_.data();  // The last that was found.
  std::uint64_t memory_generation_ = 0;   // When release_mappings() was called last.
  bool is_set_up_ = false;
  // Atomic, because others look at them who do not own the gate; relaxed, because they only look.
  std::atomic<std::uint32_t> next_sequence_{transport::kSetUpSequence};
  std::atomic<std::uint32_t> ended_{0};  // Collectives that have ended; when, as far as noticed:
  std::uint32_t ended_noticed_ = 0;
  std::uint32_t reported_ = 0;  // The last collective that the launcher has heard of.
  TimePoint ended_at_;
  Inquiry inquiry_;  // The last.
  Status failure_;
};

}  // namespace stretto::group
