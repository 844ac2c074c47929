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
// Waking a sleeping thread on another core costs tens of microseconds, handing over by sched_yield
// on the same core one or two. So: spin about as long as a wake-up costs (waiting twice as long as
// the best choice at worst, Karlin et al., 1990), but only where every rank has a core to itself,
// since otherwise the spinner keeps the peer from running; then yield for a while, for a peer that
// shares the core; then sleep until a doorbell, or until just before what is awaited is expected
// (idle_wait.h).
//
// The operating system may put two ranks on one core though there is another, for some
// milliseconds: those whom one event has woken, say. Each rank notes on which core it waits, and
// who finds another's note to be its own core yields at once.
//
// Where each rank has a core, a yield that takes long has given it to another program, for a slice
// of milliseconds in which the peer may long have come. A sleeper is woken in the midst of a slice.
// So nobody yields for a while then, which bounds what is lost to a tenth.
constexpr int kSpins = 400;           // Idle turns, of which ranks on other hosts make none longer.
constexpr int kSpinsBeforeNote = 10;  // Shorter waits do without.
constexpr std::chrono::microseconds kLongYield(700);
constexpr int kSleepOnlyTimes = 10;  // As long as that yield.
constexpr unsigned kTurnsPerDeadlineCheck = 64;
constexpr int kTurnsPerHeartbeat = 64;
// Between two looks at what wakes nobody.
constexpr std::chrono::milliseconds kAskedNap(1);
// For whoever wants the lock to wake up and take it: some tens of microseconds.
constexpr int kYieldsPerHandOver = 100;
// Whoever has missed more has not been running.
constexpr int kBeatsMissed = 4;
// So many are remembered of each peer, which could name groups without end: far more than a program
// makes at a time.
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
  // The last owner was a continuation on the background thread, which cannot wait for its own end:
  // it deletes the engine when it has ended. Nobody else reads these any more.
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
  // Nobody else is left to do it.
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
  const StreamGuard none(nullptr);  // What they submit is not behind the stream of this thread.
  // One at a time: a continuation may wait for the next one, which another thread calls then.
  while (!continuations_.empty()) {
    auto [continuation, status] = std::move(continuations_.front());
    continuations_.pop();
    if (!continuations_.empty()) notify_sleepers();
    held.unlock();
    call_back(continuation, status);
    continuation = nullptr;  // What it owns may need the lock to go.
    held.lock();
  }
}

void Engine::submitted() {
  ++in_flight_;
  if (drives_ && waiters_.load(std::memory_order_relaxed) == 0) wake_background_ = true;
  // Sleepers have an earlier idea of what to wait for.
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

// Between two turns. A mutex is not fair: who lets go of it would take it again before a thread
// that sleeps for it has woken up.
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
  // The caller has other things to do, and it may not be the only one to do these.
  const bool moved = turn_locked(drives_ ? kInlineBytes : execution::kTurnBytes);
  // What has woken the progress thread may have been taken here, and is not done with.
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
  // Whoever has turned runs the continuations that are left, and does not sleep: the thread that
  // would run the next one may be in one that waits for it.
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
  // As long as turns move something, the background thread does not come to it.
  report_live_state(now, 2 * options_.heartbeat);
  // What others have said meanwhile is read before anything is said about them.
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
    // The progress thread may be waiting for waiters to leave. Whoever still waits sees to it
    // later, with the lock as here, and so does whoever submits: it hears of all work that is left.
    if (background_drives()) wake_background_ = true;
    wake_sleepers_ = true;  // The event that ended this may have been another sleeper's as well.
  });
  return drive_locked(held, done, deadline);
}

bool Engine::drive_locked(EngineLock& held, const std::function<bool()>& done, Deadline deadline) {
  int spins_max = core_for_each_rank_ ? kSpins : 0;
  int idle_turns = 0;
  IdleWait wait;
  bool finished = false;
  while (!(finished = done())) {
    if (turn_locked()) {
      if (std::exchange(idle_turns, 0) > spins_max) wait.end(forecast_);
      run_continuations(held);
      yield_lock(held);
      if (deadline.passed() && !done()) break;  // What moves may be others', and without end.
      continue;
    }
    if (idle_turns == 0) wait = IdleWait(forecast_.expected());
    // Between turns other threads may submit.
    held.unlock();
    ++idle_turns;
    if (core_for_each_rank_ && idle_turns == kSpinsBeforeNote) {
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
  // Relaxed: a hint, which publishes nothing.
  if (core_for_each_rank_ && taken > kLongYield) {
    sleep_only_until_.store(now + kSleepOnlyTimes * taken, std::memory_order_relaxed);
  }
  return true;
}

// Returns whether it slept; does not if there was something to do after all.
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
      // Nothing is left to read: a process that was stopped wakes up behind its deadlines.
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

// What ended operations have left to a library that moves it only while it is called.
bool Engine::background_pushes() const {
  return transport_->must_push() && waiters_.load(std::memory_order_relaxed) == 0;
}

// Until nothing is left of it, somebody waits, or it is `until`. The library alone works here: with
// operations that are in flight the program's thread goes on.
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

// Without it, operations that nobody waits for would not end, nor at their deadlines.
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
  IdleWait wait;
  bool is_idle = false;
  TimePoint last_beat = Clock::now();
  while (!stopping_) {
    if (!background_drives()) {
      push(held, last_beat + heartbeat);
      run_continuations(held);
      // A driver does not rely on being told that a waiter has left.
      const bool soon = drives_ && in_flight_ > 0;
      // Of what a turn of this thread has adopted: to wait on the condition lets go of the lock.
      if (std::exchange(wake_sleepers_, false)) transport_->wake();
      work_arrived_.wait_for(held.native(), soon ? std::chrono::milliseconds(1) : heartbeat,
                             [&]() STRETTO_REQUIRES(engine_held) {
                               return stopping_ || background_drives() || background_pushes();
                             });
      is_idle = false;
      if (stopping_ || background_drives()) continue;
      // A waiter may be busy with what follows an operation.
      const TimePoint now = Clock::now();
      if ((soon || background_pushes()) && now - last_beat < heartbeat) continue;
      last_beat = now;
      // Until nothing moves: what has been asked in one turn is answered in the next.
      bool moved = true;
      for (int turn = 0; moved && turn < kTurnsPerHeartbeat; ++turn) {
        transport_->poll_all_next();
        moved = turn_locked();
        // What has woken a sleeper may have been taken here before it could look.
        if (moved) notify_sleepers();
        run_continuations(held);
        yield_lock(held);
      }
      check_deadlines();
      report_live_state(now, options_.heartbeat / 2);
      run_continuations(held);
      continue;
    }
    if (turn_locked()) {
      if (is_idle) wait.end(forecast_);
      run_continuations(held);
      yield_lock(held);
      is_idle = false;
      continue;
    }
    if (!std::exchange(is_idle, true)) wait = IdleWait(forecast_.expected());
    held.unlock();
    const TimePoint now = Clock::now();
    const bool yielded = yield(now, wait);
    held.lock();
    report_live_state(now, options_.heartbeat / 2);
    if (yielded || sleep(held, wait.wake_time(now))) continue;
    wait.end(forecast_);
    is_idle = false;
  }
}

void Engine::peer_lost(Rank peer, const Status& status) {
  note_standstill(Clock::now());  // In which it may have been given up.
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
  // The transport drops what concerns groups that this rank has ended, so this one is still to be
  // made, or never will be.
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
  return {};  // Nobody shrinks a group before all have made it: it has been destroyed here.
}

}  // namespace stretto::group
