// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/engine.h"

#include <sched.h>

#include <algorithm>

#include <fmt/format.h>

#include "stretto/base/call_back.h"
#include "stretto/base/catch_all.h"
#include "stretto/base/cores.h"
#include "stretto/base/log.h"
#include "stretto/base/scope_exit.h"
#include "stretto/base/stream_guard.h"
#include "stretto/base/thread.h"
#include "stretto/group/group.h"

namespace stretto::group {
namespace {

// Note [waiting]
//
// Waking a sleeping thread on another core costs tens of microseconds; handing over by sched_yield
// on the same core costs one or two. So a waiting thread first spins about as long as a wake-up
// costs, at worst twice as long as the best choice (Karlin et al., 1990), but only if every rank
// has a core to itself: a spinner would keep a peer on its core from running. Then it yields for a
// while, for a peer that shares the core. Then it sleeps until a doorbell or just before the
// expected end of the wait (idle_wait.h).
//
// The operating system may put two ranks on one core for some milliseconds although another is
// free, for example if one event has woken both. Each rank notes on which core it waits, and yields
// at once if another rank's note names the same core.
//
// Where each rank has a core, a long yield has given the core to another program for a slice of
// milliseconds, and the peer may have come long before its end. A sleeper is woken even within a
// slice. So threads only sleep for ten times as long then, which bounds the loss to a tenth.
constexpr int kSpins = 400;           // Idle turns. Ranks on other hosts do not make them longer.
constexpr int kSpinsBeforeNote = 10;  // Shorter waits note no core.
constexpr std::chrono::microseconds kLongYield(700);
constexpr int kSleepOnlyTimes = 10;  // Times the length of the long yield.
constexpr unsigned kTurnsPerDeadlineCheck = 64;
constexpr int kTurnsPerHeartbeat = 64;
// Time between two polls of operations whose end wakes no thread.
constexpr std::chrono::milliseconds kAskedNap(1);
// Enough for a thread that waits for the lock to wake up and take it: some tens of microseconds.
constexpr int kYieldsPerHandOver = 100;
// A rank that has missed more heartbeats has not been running.
constexpr int kBeatsMissed = 4;
// Early aborts kept per peer, which could name any number of groups; a program makes far fewer.
constexpr std::ptrdiff_t kEarlyAbortsMax = 1024;

}  // namespace

Result<std::shared_ptr<Engine>> Engine::create(std::unique_ptr<transport::Endpoint> transport,
                                               Options options) {
  const std::shared_ptr<Engine> engine(new Engine(std::move(transport), std::move(options)),
                                       &Engine::destroy);
  STRETTO_RETURN_IF_ERROR(engine->start_background_thread());
  return engine;
}

void Engine::destroy(Engine* engine) {
  if (!engine->is_owner_process()) return;
  if (engine->thread_.get_id() != std::this_thread::get_id()) {
    delete engine;
    return;
  }
  // The last owner was a continuation on the background thread, which cannot join itself. So it
  // deletes the engine when it ends. No other thread reads these members any more.
  engine->thread_.detach();
  engine->orphaned_ = true;
  engine->stopping_ = true;
}

Status Engine::start_background_thread() {
  const bool beats = options_.heartbeat > Duration::zero() && transport_->size() > 1;
  beats_ = beats;
  if (!drives_ && !beats) return {};
  STRETTO_ASSIGN_OR_RETURN(thread_, start_thread("stretto-engine", [this] {
                             catch_all(
                                 [this] { run_background_thread(); },
                                 [this](const char* what) { background_thread_failed(what); });
                             if (orphaned_) delete this;
                           }));
  return {};
}

Engine::Engine(std::unique_ptr<transport::Endpoint> transport, Options options)
    : transport_(std::move(transport)), options_(std::move(options)) {
  const int cores = options_.local_cores > 0 ? options_.local_cores : usable_cores();
  core_for_each_rank_ = cores >= options_.local_ranks;
  transport_->set_listener(this);
  drives_ = options_.progress_thread == ProgressThread::always ||
            (options_.progress_thread == ProgressThread::automatic &&
             cores > options_.local_ranks && transport_->size() > 1);
}

Engine::~Engine() {
  if (thread_.joinable()) {
    {
      const std::lock_guard guard(mutex_);
      stopping_ = true;
    }
    work_arrived_.notify_all();
    transport_->wake();
    thread_.join();
  }
  transport_->set_listener(nullptr);
  // No other thread is left to run them.
  EngineLock held(*this);
  run_continuations(held);
}

Status Engine::check_not_forked() const {
  if (is_owner_process()) return {};
  return status_of(StatusCode::invalid_argument,
                   "this process was forked from rank {}, whose communicator it cannot use: fork "
                   "before join(), or start a program (exec)",
                   transport_->rank().value());
}

std::string Engine::name_of(Rank job_rank) const {
  const auto index = static_cast<std::size_t>(job_rank);
  if (index >= options_.names.size()) return fmt::format("rank {}", job_rank.value());
  return fmt::format("rank {} ({})", job_rank.value(), options_.names[index]);
}

void Engine::note(std::string_view activity) {
  const EngineLock held(*this);
  activity_ = activity;
}

void Engine::add(Group& group) {
  groups_.push_back(&group);
  const auto of_group =
      std::stable_partition(early_aborts_.begin(), early_aborts_.end(),
                            [&](const EarlyAbort& early) { return early.group != group.id(); });
  for (auto each = of_group; each != early_aborts_.end(); ++each) {
    group.aborted(each->from, each->reason, each->stage);
  }
  early_aborts_.erase(of_group, early_aborts_.end());
}

void Engine::call_later(Continuation&& continuation, Status&& status) {
  continuations_.reserve(continuations_.size() + 1);
  continuations_.push({std::move(continuation), std::move(status)});
}

void Engine::run_continuations(EngineLock& held) {
  const StreamGuard none(nullptr);  // What they submit is not ordered behind this thread's stream.
  // One at a time: a continuation may wait for the next one, which another thread calls then.
  while (!continuations_.empty()) {
    auto [continuation, status] = std::move(continuations_.front());
    continuations_.pop();
    if (!continuations_.empty()) notify_sleepers();
    held.unlock();
    call_back(continuation, status);
    continuation = nullptr;  // The destructors of what it owns may need the lock.
    held.lock();
  }
}

void Engine::submitted() {
  ++in_flight_;
  if (drives_ && waiters_.load(std::memory_order_relaxed) == 0) wake_background_ = true;
  // Sleepers do not know of this operation yet.
  if (sleepers_.load(std::memory_order_relaxed) > 0) wake_sleepers_ = true;
}

void Engine::take(std::unique_lock<std::mutex>& held) {
  if (held.try_lock()) return;
  contenders_.fetch_add(1, std::memory_order_relaxed);
  held.lock();
  contenders_.fetch_sub(1, std::memory_order_relaxed);
}

void Engine::release(std::unique_lock<std::mutex>& held) {
  const bool wake_background = (std::exchange(wake_background_, false) && in_flight_ > 0) ||
                               (background_pushes() && !is_pushing_);
  const bool wake_sleepers =
      std::exchange(wake_sleepers_, false) && sleepers_.load(std::memory_order_relaxed) > 0;
  held.unlock();
  if (wake_background) work_arrived_.notify_one();
  if (wake_sleepers) transport_->wake();
}

// Called between two turns. A mutex is not fair: the thread that releases it would take it again
// before a thread that sleeps on it has woken up.
void Engine::yield_lock(EngineLock& held) {
  const int contenders = contenders_.load(std::memory_order_relaxed);
  if (contenders == 0) return;
  held.unlock();
  for (int i = 0; i < kYieldsPerHandOver; ++i) {
    ::sched_yield();
    if (contenders_.load(std::memory_order_relaxed) < contenders) break;
  }
  held.lock();
}

bool Engine::turn() {
  EngineLock held(*this);
  // A bounded turn: the caller has other things to do, and other threads may make progress as well.
  const bool moved = turn_locked(drives_ ? kInlineBytes : execution::kTurnBytes);
  // This turn may have consumed the event that woke the progress thread, with work left.
  if (moved) notify_sleepers();
  run_continuations(held);
  return moved;
}

bool Engine::turn_locked() {
  return turn_locked(in_flight_ > 1 ? execution::kTurnBytes : execution::kLoneTurnBytes);
}

bool Engine::turn_locked(std::size_t bytes_of_each_group) {
  bool moved = transport_->progress();
  // By index: an ending operation may add or remove groups.
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    moved = groups_[i]->advance(turn_of(bytes_of_each_group)) || moved;
  }
  if (++turns_ % kTurnsPerDeadlineCheck == 0) check_deadlines();
  // The caller must run continuations that are left, and not sleep: the thread that would run the
  // next one may be inside a continuation that waits for it.
  return moved || !continuations_.empty();
}

void Engine::note_standstill(TimePoint now) {
  const Duration since_last = now - std::exchange(checked_at_, now);
  if (beats_ && since_last > kBeatsMissed * options_.heartbeat) {
    resumed_at_ = now;
    stood_still_ = since_last;
  }
}

void Engine::check_deadlines() {
  const TimePoint now = Clock::now();
  note_standstill(now);
  // The background thread does not report while all turns of a waiting thread move something.
  report_live_state(now, 2 * options_.heartbeat);
  // After a standstill, read what other ranks have sent meanwhile before blaming them.
  if (beats_ && now - resumed_at_ < options_.heartbeat) return;
  transport_->check_contacts(now);
  for (std::size_t i = 0; i < groups_.size(); ++i) groups_[i]->check_deadlines(now);
}

bool Engine::drive(const std::function<bool()>& done, Deadline deadline) {
  waiters_.fetch_add(1, std::memory_order_relaxed);
  EngineLock held(*this);
  wait_time_.begin();
  const ScopeExit leave([&]() STRETTO_UNCHECKED_LOCKING {
    if (!held.owns_lock()) held.lock();  // After an exception.
    wait_time_.end();
    waiters_.fetch_sub(1, std::memory_order_relaxed);
    // The progress thread may be waiting until no thread waits. Threads that still wait, and those
    // that submit, wake it later with the lock. So it hears of all work that is left.
    if (background_drives()) wake_background_ = true;
    wake_sleepers_ = true;  // Another sleeper may need the same event.
  });
  return drive_locked(held, done, deadline, core_for_each_rank_);
}

bool Engine::drive_locked(EngineLock& held, const std::function<bool()>& done, Deadline deadline,
                          bool may_spin) {
  int spins_max = may_spin ? kSpins : 0;
  int idle_turns = 0;
  IdleWait wait;
  bool finished = false;
  while (!(finished = done())) {
    if (turn_locked()) {
      if (std::exchange(idle_turns, 0) > spins_max) wait.end(forecast_);
      run_continuations(held);
      yield_lock(held);
      if (deadline.passed() && !done()) break;  // Other operations may move without end.
      continue;
    }
    if (idle_turns == 0) wait = IdleWait(forecast_.expected());
    // Other threads may submit between turns.
    held.unlock();
    ++idle_turns;
    if (may_spin && idle_turns == kSpinsBeforeNote) {
      spins_max = transport_->shares_core() ? 0 : kSpins;
    }
    if (idle_turns <= spins_max) {
      pause();
      held.lock();
      continue;
    }
    const TimePoint now = Clock::now();
    if (now >= deadline.time()) break;
    const bool yielded = yield(now, wait);
    held.lock();
    if (yielded || done()) continue;
    if (!sleep(held, std::min(deadline.time(), wait.wake_time(now)))) {
      wait.end(forecast_);
      idle_turns = 0;
    }
  }
  if (!held.owns_lock()) held.lock();
  run_continuations(held);
  return finished;
}

bool Engine::yield(TimePoint now, IdleWait& wait) {
  if (!wait.should_yield(now) || now < sleep_only_until_.load(std::memory_order_relaxed))
    return false;
  ::sched_yield();
  const Duration taken = Clock::now() - now;
  // Relaxed: this is a hint that publishes no other data.
  if (core_for_each_rank_ && taken > kLongYield) {
    sleep_only_until_.store(now + kSleepOnlyTimes * taken, std::memory_order_relaxed);
  }
  return true;
}

// Returns whether it slept. It does not sleep if a last turn finds something to do.
bool Engine::sleep(EngineLock& held, TimePoint until) {
  bool idle = false;
  {
    transport_->begin_sleep();
    sleepers_.fetch_add(1, std::memory_order_relaxed);
    const ScopeExit awake([&]() STRETTO_UNCHECKED_LOCKING {
      if (!held.owns_lock()) held.lock();
      sleepers_.fetch_sub(1, std::memory_order_relaxed);
      transport_->end_sleep();
    });
    idle = !turn_locked();
    if (idle) {
      // After a stop, deadlines may have passed. Nothing is left to read that would excuse peers.
      check_deadlines();
      if (must_be_asked() || transport_->awaits_obituary()) {
        until = std::min(until, Clock::now() + kAskedNap);
      }
      held.unlock();
      transport_->sleep(Deadline(until));
      held.lock();
    }
  }
  run_continuations(held);
  return idle;
}

bool Engine::must_be_asked() const {
  return std::ranges::any_of(groups_, [](const Group* group) STRETTO_REQUIRES(engine_held) {
    return group->must_be_asked();
  });
}

bool Engine::background_drives() const {
  return drives_ && in_flight_ > 0 && waiters_.load(std::memory_order_relaxed) == 0;
}

// Whether ended operations have left bytes to a library that moves them only while it is called.
bool Engine::background_pushes() const {
  return transport_->must_push() && waiters_.load(std::memory_order_relaxed) == 0;
}

// Calls that library until it has nothing left, a thread waits, or `until` has come. Operations in
// flight are left to the program's threads.
void Engine::push(EngineLock& held, TimePoint until) {
  constexpr Duration kFirstNap = std::chrono::milliseconds(1);
  constexpr Duration kLongestNap = std::chrono::milliseconds(16);  // A peer may be stopped.
  Duration nap = kFirstNap;
  is_pushing_ = true;
  while (!stopping_ && !background_drives() && background_pushes() && Clock::now() < until) {
    nap = transport_->progress() ? kFirstNap : std::min(2 * nap, kLongestNap);
    work_arrived_.wait_for(held.native(), nap, [&]() STRETTO_REQUIRES(engine_held) {
      return stopping_ || background_drives();
    });
  }
  is_pushing_ = false;
}

// Fails all groups: without the thread, operations that no thread waits for would not end, not even
// at their deadlines.
void Engine::background_thread_failed(const char* what) {
  EngineLock held(*this);
  const Status failure =
      status_of(StatusCode::internal, "the thread that makes progress for rank {} has ended: {}",
                transport_->rank().value(), what);
  log(LogLevel::error, "{}", failure.message());
  for (std::size_t i = 0; i < groups_.size(); ++i) groups_[i]->fail(failure, true);
  run_continuations(held);
}

void Engine::run_background_thread() {
  const Duration heartbeat =
      options_.heartbeat > Duration::zero() ? options_.heartbeat : std::chrono::hours(1);
  EngineLock held(*this);
  TimePoint last_beat = Clock::now();
  while (!stopping_) {
    if (!background_drives()) {
      push(held, last_beat + heartbeat);
      run_continuations(held);
      // A progress thread does not rely on being told that a waiting thread has left.
      const bool soon = drives_ && in_flight_ > 0;
      // After a turn that has adopted an operation: wait_for() unlocks without release().
      if (std::exchange(wake_sleepers_, false)) transport_->wake();
      work_arrived_.wait_for(held.native(), soon ? std::chrono::milliseconds(1) : heartbeat,
                             [&]() STRETTO_REQUIRES(engine_held) {
                               return stopping_ || background_drives() || background_pushes();
                             });
      if (stopping_ || background_drives()) continue;
      // A waiting thread may be busy with the code after its operation.
      const TimePoint now = Clock::now();
      if ((soon || background_pushes()) && now - last_beat < heartbeat) continue;
      last_beat = now;
      // Until nothing moves: an inquiry that one turn reads is answered in the next.
      bool moved = true;
      for (int turn = 0; moved && turn < kTurnsPerHeartbeat; ++turn) {
        transport_->poll_all_next();
        moved = turn_locked();
        // This turn may have consumed the event that woke a sleeper.
        if (moved) notify_sleepers();
        run_continuations(held);
        yield_lock(held);
      }
      check_deadlines();
      report_live_state(now, options_.heartbeat / 2);
      run_continuations(held);
      continue;
    }
    // The program's threads may need this core, so it does not spin.
    drive_locked(
        held, [this]() STRETTO_REQUIRES(engine_held) { return stopping_ || !background_drives(); },
        Deadline::after(heartbeat / 2), /*may_spin=*/false);
    report_live_state(Clock::now(), heartbeat / 2);
  }
}

void Engine::peer_lost(Rank peer, const Status& status) {
  note_standstill(Clock::now());  // The peer may have given this rank up meanwhile.
  for (std::size_t i = 0; i < groups_.size(); ++i) groups_[i]->member_lost(peer, status);
}

void Engine::peer_left(Rank peer, const Status& status) {
  for (std::size_t i = 0; i < groups_.size(); ++i) groups_[i]->member_left(peer, status);
}

std::optional<std::string> Engine::find_obituary(Rank peer) {
  return options_.find_obituary ? options_.find_obituary(peer) : std::nullopt;
}

Group* Engine::find(std::uint64_t group) const {
  const auto found = std::ranges::find(groups_, group, &Group::id);
  return found == groups_.end() ? nullptr : *found;
}

void Engine::unexpected_message(Rank from, const transport::MessageKey& key,
                                const OperationDescriptor& operation) {
  Group* const group = find(key.group);
  if (group != nullptr) group->unexpected_message(from, key.sequence, operation);
}

void Engine::group_aborted(std::uint64_t group, Rank from, const Status& reason,
                           transport::GroupStage stage) {
  if (Group* const found = find(group)) return found->aborted(from, reason, stage);
  // The transport drops frames about groups that this rank has destroyed, so this group is not made
  // yet, or never will be.
  if (std::ranges::count(early_aborts_, from, &EarlyAbort::from) >= kEarlyAbortsMax) {
    early_aborts_.erase(std::ranges::find(early_aborts_, from, &EarlyAbort::from));
  }
  early_aborts_.push_back({group, from, reason, stage});
}

void Engine::group_left(std::uint64_t group, Rank from, transport::Farewell farewell) {
  Group* const found = find(group);
  if (found == nullptr) return;
  const std::string_view why = farewell == transport::Farewell::unwinding
                                   ? " because an exception unwound its stack; see its output"
                                   : "";
  found->member_left(
      from, {StatusCode::peer_lost,
             fmt::format("rank {} has destroyed its communicator{}", from.value(), why), from});
}

Status Engine::agreement_arrived(Rank from, const transport::MessageKey& key,
                                 ConstByteSpan payload) {
  if (Group* const group = find(key.group)) return group->agreement_arrived(from, key, payload);
  return {};  // No rank shrinks a group before all have made it, so this rank has destroyed it.
}

}  // namespace stretto::group
