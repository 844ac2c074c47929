// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/owner_process.h"
#include "stretto/base/ring_queue.h"
#include "stretto/execution/turn.h"
#include "stretto/group/engine_held.h"
#include "stretto/group/idle_wait.h"
#include "stretto/group/live_state.h"
#include "stretto/group/operation.h"
#include "stretto/group/progress_thread.h"
#include "stretto/transport/endpoint.h"

namespace stretto::group {

class EngineLock;
class Group;

// Runs all groups of one rank on one transport. One lock guards the groups, their operations and
// the transport. A thread holds it for one turn of progress, which works on a bounded number of
// bytes of each group (execution/turn.h), and never while it sleeps. Between turns other threads
// can take the lock.
//
// A waiting thread drives: it takes turns of progress itself, for all operations, so that a
// blocking call needs no hand-over. If the background thread is a progress thread, it drives while
// operations are in flight and no thread waits. Otherwise it only takes a turn now and then (the
// heartbeat), so that deadlines hold, a death is noticed, and inquiries of other ranks are answered
// while this rank's program is busy elsewhere. It also calls a library that moves nothing unless it
// is called, until that library has moved everything that ended operations have left to it.
class Engine final : private transport::TransportListener {
 public:
  struct Options {
    ProgressThread progress_thread = ProgressThread::automatic;
    int local_ranks = 1;  // Ranks of the job on this host, this one included.
    int local_cores = 0;  // Cores that all of them together may use. 0: those of this process.
    // Per rank of the job, for error messages: "node04 pid 8812". May be empty.
    std::vector<std::string> names = {};
    // Time between two turns of the background thread while no other thread takes turns. Zero: it
    // takes none.
    Duration heartbeat = std::chrono::milliseconds(500);
    // The log warns of an operation that has waited this long for other ranks, and again after
    // twice as long, and so on. Zero: never.
    Duration warn_after = std::chrono::seconds(60);
    // Called with a description of what this rank is doing, for the launcher's report. May be
    // empty.
    std::function<void(std::string_view)> report_activity = {};
    // Called with this rank's live state about once a heartbeat, and once in two heartbeats while
    // every turn of a thread that waits moves something. Must not block. May be empty.
    std::function<void(const LiveState&)> report_live_state = {};
    // Returns what the launcher has told about how the process of a rank of the job ended: see
    // TransportListener::find_obituary(). Must not block. May be empty: no launcher tells.
    std::function<std::optional<std::string>(Rank)> find_obituary = {};
    // The number of a group's first collective. A test can start near the last number.
    std::uint32_t first_sequence = 1;
  };
  // Fails with system if its background thread cannot be started.
  static Result<std::shared_ptr<Engine>> create(std::unique_ptr<transport::Endpoint> transport,
                                                Options options);
  ~Engine();

  // Fails with invalid_argument in a child process that was forked after join(): sockets and shared
  // memory belong to the parent, which the child must not disturb.
  Status check_not_forked() const;
  bool is_owner_process() const { return owner_process_.is_here(); }
  transport::Endpoint& transport() { return *transport_; }
  const Options& options() const { return options_; }
  bool has_progress_thread() const { return drives_; }
  bool has_core_for_each_rank() const { return core_for_each_rank_; }
  // "rank 3 (node04 pid 8812)".
  std::string name_of(Rank job_rank) const;
  std::span<Group* const> groups() const STRETTO_REQUIRES(engine_held) { return groups_; }
  // Null if this rank has not made this group yet, or has destroyed it.
  Group* find(std::uint64_t group) const STRETTO_REQUIRES(engine_held);
  // Stores what the program does between operations, for the answers to inquiries. Any thread.
  void note(std::string_view activity);

  // How long this rank last stood still (its process was stopped or had no core), if it resumed
  // after `since`; else zero. After a standstill, silence of other ranks proves nothing: this rank
  // has missed their messages.
  Duration stood_still(TimePoint since) const STRETTO_REQUIRES(engine_held) {
    return resumed_at_ > since ? stood_still_ : Duration::zero();
  }

  void add(Group& group) STRETTO_REQUIRES(engine_held);
  void remove(Group& group) STRETTO_REQUIRES(engine_held) { std::erase(groups_, &group); }
  // An operation has been submitted. Sleeping threads must learn of it. They are woken when the
  // lock is released, as they would only wait for it before.
  void submitted() STRETTO_REQUIRES(engine_held);
  // An operation has ended. A sleeping thread may be waiting for it.
  void ended() STRETTO_REQUIRES(engine_held) {
    --in_flight_;
    if (sleepers_.load(std::memory_order_relaxed) > 0) wake_sleepers_ = true;
  }
  // Queues `continuation` for the next run_continuations(). If it throws for lack of memory, it has
  // not moved from its arguments.
  void call_later(Continuation&& continuation, Status&& status) STRETTO_REQUIRES(engine_held);
  // Calls the queued continuations one by one, in order, without holding the lock during each call.
  // Several threads may do so at the same time; each continuation is called once.
  void run_continuations(EngineLock& held) STRETTO_REQUIRES(engine_held) STRETTO_UNCHECKED_LOCKING;

  // Called without the lock. Drives until `done`, which is called with the lock held, returns true,
  // or until the deadline passes. Returns the last result of `done`.
  bool drive(const std::function<bool()>& done, Deadline deadline) STRETTO_UNCHECKED_LOCKING;
  // A turn that ends early when other threads wait for the lock.
  execution::Turn turn_of(std::size_t bytes) STRETTO_REQUIRES(engine_held) {
    return {*transport_, bytes, &contenders_};
  }
  // Takes one turn. Returns whether anything moved.
  bool turn();

 private:
  friend class EngineLock;
  void take(std::unique_lock<std::mutex>& held);
  void release(std::unique_lock<std::mutex>& held) STRETTO_UNCHECKED_LOCKING;
  void yield_lock(EngineLock& held) STRETTO_REQUIRES(engine_held) STRETTO_UNCHECKED_LOCKING;
  bool turn_locked() STRETTO_REQUIRES(engine_held);
  bool turn_locked(std::size_t bytes_of_each_group) STRETTO_REQUIRES(engine_held);
  // Does the work of drive(), spinning before it yields if it `may_spin`. The lock is held when it
  // returns.
  bool drive_locked(EngineLock& held, const std::function<bool()>& done, Deadline deadline,
                    bool may_spin) STRETTO_REQUIRES(engine_held) STRETTO_UNCHECKED_LOCKING;
  // Called without the lock. Returns false, without yielding, if it is better to sleep: see Note
  // [waiting].
  bool yield(TimePoint now, IdleWait& wait);
  bool sleep(EngineLock& held, TimePoint until)
      STRETTO_REQUIRES(engine_held) STRETTO_UNCHECKED_LOCKING;
  Engine(std::unique_ptr<transport::Endpoint> transport, Options options);
  Status start_background_thread();
  static void destroy(Engine* engine) STRETTO_UNCHECKED_LOCKING;
  bool background_drives() const STRETTO_REQUIRES(engine_held);
  bool background_pushes() const STRETTO_REQUIRES(engine_held);
  void push(EngineLock& held, TimePoint until) STRETTO_REQUIRES(engine_held);
  bool must_be_asked() const STRETTO_REQUIRES(engine_held);
  // Wakes sleeping threads, as something has happened that they may wait for. With or without the
  // lock.
  void notify_sleepers() {
    if (sleepers_.load(std::memory_order_relaxed) > 0) transport_->wake();
  }
  void run_background_thread() STRETTO_UNCHECKED_LOCKING;
  void background_thread_failed(const char* what) STRETTO_UNCHECKED_LOCKING;
  void check_deadlines() STRETTO_REQUIRES(engine_held);
  LiveState live_state() const STRETTO_REQUIRES(engine_held);
  // Reports, unless the last report is less than `least` ago.
  void report_live_state(TimePoint now, Duration least) STRETTO_REQUIRES(engine_held);
  // Remembers a standstill of this process, if there was one since the last call.
  void note_standstill(TimePoint now) STRETTO_REQUIRES(engine_held);

  // The transport calls these, in a turn of progress.
  void peer_lost(Rank peer, const Status& status) STRETTO_REQUIRES(engine_held) override;
  void peer_left(Rank peer, const Status& status) STRETTO_REQUIRES(engine_held) override;
  std::optional<std::string> find_obituary(Rank peer) override;
  void unexpected_message(Rank from, const transport::MessageKey& key,
                          const OperationDescriptor& operation)
      STRETTO_REQUIRES(engine_held) override;
  void group_aborted(std::uint64_t group, Rank from, const Status& reason,
                     transport::GroupStage stage) STRETTO_REQUIRES(engine_held) override;
  void group_left(std::uint64_t group, Rank from, transport::Farewell farewell)
      STRETTO_REQUIRES(engine_held) override;
  Status agreement_arrived(Rank from, const transport::MessageKey& key, ConstByteSpan payload)
      STRETTO_REQUIRES(engine_held) override;
  std::string describe_state(Rank from, std::uint64_t group, std::uint32_t sequence,
                             const OperationDescriptor& operation)
      STRETTO_REQUIRES(engine_held) override;
  void state_reported(Rank peer, std::uint64_t group, std::uint32_t sequence,
                      const std::string& text) STRETTO_REQUIRES(engine_held) override;

  std::unique_ptr<transport::Endpoint> transport_;
  Options options_;
  bool core_for_each_rank_;
  OwnerProcess owner_process_;
  std::mutex mutex_;
  std::condition_variable work_arrived_;  // For the background thread.
  std::vector<Group*> groups_ STRETTO_GUARDED_BY(engine_held);
  // Aborts of groups that this rank has not begun to make; the oldest first.
  struct EarlyAbort {
    std::uint64_t group = 0;
    Rank from = 0;
    Status reason;
    transport::GroupStage stage = transport::GroupStage::set_up;
  };
  std::vector<EarlyAbort> early_aborts_ STRETTO_GUARDED_BY(engine_held);
  RingQueue<std::pair<Continuation, Status>> continuations_ STRETTO_GUARDED_BY(engine_held);
  std::string activity_ STRETTO_GUARDED_BY(engine_held);
  int in_flight_ STRETTO_GUARDED_BY(engine_held) = 0;
  // Which threads release() has to wake: the background thread, and those that sleep until messages
  // arrive.
  bool wake_background_ STRETTO_GUARDED_BY(engine_held) = false;
  bool is_pushing_ STRETTO_GUARDED_BY(engine_held) = false;
  bool wake_sleepers_ STRETTO_GUARDED_BY(engine_held) = false;
  std::atomic<int> contenders_{0};  // Threads that wait for the lock.
  std::atomic<int> waiters_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<TimePoint> sleep_only_until_{};
  ArrivalForecast forecast_ STRETTO_GUARDED_BY(engine_held);
  WaitTime wait_time_ STRETTO_GUARDED_BY(engine_held);
  TimePoint live_state_reported_at_ STRETTO_GUARDED_BY(engine_held);
  unsigned turns_ STRETTO_GUARDED_BY(engine_held) = 0;
  bool stopping_ STRETTO_GUARDED_BY(engine_held) = false;
  bool drives_ = false;    // Whether the background thread is a progress thread.
  bool orphaned_ = false;  // Whether the background thread has to delete the engine.
  bool beats_ = false;     // Whether the background thread takes a turn at least once a heartbeat.
  TimePoint checked_at_ STRETTO_GUARDED_BY(engine_held) = Clock::now();  // Last check of deadlines.
  TimePoint resumed_at_ STRETTO_GUARDED_BY(engine_held);
  Duration stood_still_ STRETTO_GUARDED_BY(engine_held){};
  std::thread thread_;
};

// The lock under which groups, their operations and the transport may be touched.
class STRETTO_SCOPED_CAPABILITY EngineLock {
 public:
  // Throws what check_not_forked() returns: in a forked child, a thread that does not exist there
  // may hold the lock.
  explicit EngineLock(Engine& engine) STRETTO_ACQUIRE(engine_held)
      : engine_(engine), held_(engine.mutex_, std::defer_lock) {
    engine.check_not_forked().or_throw();
    engine.take(held_);
  }
  ~EngineLock() STRETTO_RELEASE() {
    if (held_.owns_lock()) engine_.release(held_);
  }
  EngineLock(const EngineLock&) = delete;
  EngineLock& operator=(const EngineLock&) = delete;

  void lock() STRETTO_ACQUIRE() { engine_.take(held_); }
  void unlock() STRETTO_RELEASE() { engine_.release(held_); }
  bool owns_lock() const { return held_.owns_lock(); }
  // For the wait of a condition_variable.
  std::unique_lock<std::mutex>& native() { return held_; }

 private:
  Engine& engine_;
  std::unique_lock<std::mutex> held_;
};

}  // namespace stretto::group
