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

// Runs all groups of one rank on one transport. One lock guards everything below it; it is held for
// one turn of progress at a time, which works on a bounded number of bytes of each group
// (execution/turn.h), and never while sleeping. Between turns other threads come in.
//
// Whoever waits drives: a waiting thread takes turns of progress itself, for all operations, so
// that a blocking call needs no hand-over. The background thread drives while operations are in
// flight and nobody waits, if it is a progress thread; else, and while others wait, it only takes a
// turn now and then (the heartbeat), so that deadlines hold, a death is noticed, and others who ask
// what this rank does get an answer while its program is busy elsewhere; and it pushes on what
// operations have left to a library that moves nothing unless it is called.
class Engine final : private transport::TransportListener {
 public:
  struct Options {
    ProgressThread progress_thread = ProgressThread::automatic;
    int local_ranks = 1;  // Ranks of the job on this host, this one included.
    int local_cores = 0;  // Cores that they may use, all together. 0: those of this process.
    // Per rank of the job: "node04 pid 8812", for messages. May be empty.
    std::vector<std::string> names = {};
    // Between two turns of a rank that has nobody else to take them. Zero: none are taken.
    Duration heartbeat = std::chrono::milliseconds(500);
    // An operation that has waited so long for others says so in the log, and again after twice as
    // long, and so on. Zero: never.
    Duration warn_after = std::chrono::seconds(60);
    // Told what this rank is doing, for the launcher's report. May be empty.
    std::function<void(std::string_view)> report_activity = {};
    // Told about once a heartbeat how this rank gets on, for whoever watches the job; once in two
    // while there is always something to do. Must not block. May be empty.
    std::function<void(const LiveState&)> report_live_state = {};
    // How the process of a rank of the job has ended, as the launcher has told: see
    // TransportListener::find_obituary(). Must not block. May be empty: nobody tells.
    std::function<std::optional<std::string>(Rank)> find_obituary = {};
    // The number of a group's first collective; a test may be near the last one.
    std::uint32_t first_sequence = 1;
  };
  // Fails with system if its background thread cannot be started.
  static Result<std::shared_ptr<Engine>> create(std::unique_ptr<transport::Endpoint> transport,
                                                Options options);
  ~Engine();

  // invalid_argument in a child that was forked after join(). What it has is its parent's, whom it
  // must not disturb.
  Status check_not_forked() const;
  bool is_owner_process() const { return owner_process_.is_here(); }
  transport::Endpoint& transport() { return *transport_; }
  const Options& options() const { return options_; }
  bool has_progress_thread() const { return drives_; }
  bool has_core_for_each_rank() const { return core_for_each_rank_; }
  // "rank 3 (node04 pid 8812)".
  std::string name_of(Rank job_rank) const;
  std::span<Group* const> groups() const STRETTO_REQUIRES(engine_held) { return groups_; }
  // Null if this rank has no such group (any more).
  Group* find(std::uint64_t group) const STRETTO_REQUIRES(engine_held);
  // What the program does between operations, for others who ask. Any thread.
  void note(std::string_view activity);

  // For how long this rank has made no progress, if it has gone on after
  // `since` only. It was stopped, or had no core; what others seem to have missed, it has.
  Duration stood_still(TimePoint since) const STRETTO_REQUIRES(engine_held) {
    return resumed_at_ > since ? stood_still_ : Duration::zero();
  }

  void add(Group& group) STRETTO_REQUIRES(engine_held);
  void remove(Group& group) STRETTO_REQUIRES(engine_held) { std::erase(groups_, &group); }
  // An operation has been submitted: whoever sleeps must know of it, and is woken as soon as the
  // lock is let go of, for which it would only have to wait.
  void submitted() STRETTO_REQUIRES(engine_held);
  // An operation has ended. A thread that sleeps may have waited for it.
  void ended() STRETTO_REQUIRES(engine_held) {
    --in_flight_;
    if (sleepers_.load(std::memory_order_relaxed) > 0) wake_sleepers_ = true;
  }
  // Calls `continuation` as soon as a thread that makes progress has let go of the lock. Who throws
  // for lack of memory has taken nothing.
  void call_later(Continuation&& continuation, Status&& status) STRETTO_REQUIRES(engine_held);
  // Does so now, letting go of the lock meanwhile: calls one after the other, as they have come.
  // Whichever other thread does the same meanwhile takes its part of them.
  void run_continuations(EngineLock& held) STRETTO_REQUIRES(engine_held) STRETTO_UNCHECKED_LOCKING;

  // Called without the lock. Drives until `done` says true (asked with the lock held) or the
  // deadline passes; returns whether it did.
  bool drive(const std::function<bool()>& done, Deadline deadline) STRETTO_UNCHECKED_LOCKING;
  // A turn that ends when others wait for the lock.
  execution::Turn turn_of(std::size_t bytes) STRETTO_REQUIRES(engine_held) {
    return {*transport_, bytes, &contenders_};
  }
  // One turn. Returns whether anything moved.
  bool turn();

 private:
  friend class EngineLock;
  void take(std::unique_lock<std::mutex>& held);
  void release(std::unique_lock<std::mutex>& held) STRETTO_UNCHECKED_LOCKING;
  void yield_lock(EngineLock& held) STRETTO_REQUIRES(engine_held) STRETTO_UNCHECKED_LOCKING;
  bool turn_locked() STRETTO_REQUIRES(engine_held);
  bool turn_locked(std::size_t bytes_of_each_group) STRETTO_REQUIRES(engine_held);
  // As drive(), with the lock held when it returns.
  bool drive_locked(EngineLock& held, const std::function<bool()>& done, Deadline deadline)
      STRETTO_REQUIRES(engine_held) STRETTO_UNCHECKED_LOCKING;
  // Called without the lock. Does nothing, and says so, where it is better to sleep: see Note
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
  // What has happened may be what they sleep for. With the lock or without.
  void notify_sleepers() {
    if (sleepers_.load(std::memory_order_relaxed) > 0) transport_->wake();
  }
  void run_background_thread() STRETTO_UNCHECKED_LOCKING;
  void background_thread_failed(const char* what) STRETTO_UNCHECKED_LOCKING;
  void check_deadlines() STRETTO_REQUIRES(engine_held);
  LiveState live_state() const STRETTO_REQUIRES(engine_held);
  // Unless it has done so less than `least` ago.
  void report_live_state(TimePoint now, Duration least) STRETTO_REQUIRES(engine_held);
  // Remembers for how long this process has been stopped, if it has been since the last call.
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
  // Groups that others have abandoned before this rank has begun to make them; the oldest first.
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
  // Whom release() has to wake: the background thread, and those that sleep for messages.
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
  bool orphaned_ = false;  // Of the background thread: whether it has to delete the engine.
  bool beats_ = false;     // Whether the background thread looks at least once a heartbeat.
  TimePoint checked_at_ STRETTO_GUARDED_BY(engine_held) = Clock::now();  // The deadlines, last.
  TimePoint resumed_at_ STRETTO_GUARDED_BY(engine_held);
  Duration stood_still_ STRETTO_GUARDED_BY(engine_held){};
  std::thread thread_;
};

// The lock under which groups, their operations and the transport may be touched.
class STRETTO_SCOPED_CAPABILITY EngineLock {
 public:
  // Throws what check_not_forked() says: in a forked child, the lock may be held by a thread that
  // is not there.
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
  // For a condition_variable to wait with.
  std::unique_lock<std::mutex>& native() { return held_; }

 private:
  Engine& engine_;
  std::unique_lock<std::mutex> held_;
};

}  // namespace stretto::group
