// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/simulation/simulation.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "stretto/communicator/scheduled_backend.h"

namespace stretto::simulation {
namespace {

constexpr std::uint64_t kEagernessMax = 10;

}  // namespace

using communicator::ScheduledBackend;
using group::Engine;

Simulation::Simulation(const Options& options) : random_(options.seed) {
  transport::sim::World world =
      transport::sim::make_world({.ranks = options.ranks, .seed = random_.next()}).or_throw();
  network_ = world.network;
  for (auto& endpoint : world.endpoints) {
    SimulatedRank& rank = ranks_.emplace_back();
    rank.engine = Engine::create(std::move(endpoint),
                                 Engine::Options{.progress_thread = ProgressThread::never,
                                                 .local_ranks = options.ranks,
                                                 .heartbeat = Duration::zero()})
                      .or_throw();
    rank.communicator =
        ScheduledBackend::make_world(rank.engine,
                                     {.share_windows = false, .group = {.hosts = options.hosts}})
            .or_throw();
    // Some ranks are ten times as slow as others.
    rank.eagerness = random_.below(3) == 0 ? 1 : kEagernessMax;
    eagerness_total_ += rank.eagerness;
  }
}

// Nobody takes turns any more, so nothing would end the wait for a Work that is not done.
Simulation::~Simulation() {
  for (SimulatedRank& rank : ranks_) rank.communicator->abort("the simulation is over");
}

void Simulation::kill_at(std::uint64_t turn, int rank) {
  event_turn_ = turn;
  event_ = [this, rank] {
    network_->kill(rank);
    ranks_[index(rank)].dead = true;
  };
}

void Simulation::cut_at(std::uint64_t turn, int rank, int other) {
  event_turn_ = turn;
  event_ = [this, rank, other] { network_->cut(rank, other); };
}

Simulation::SimulatedRank& Simulation::draw_rank() {
  std::uint64_t drawn = random_.below(eagerness_total_);
  for (SimulatedRank& rank : ranks_) {
    if (drawn < rank.eagerness) return rank;
    drawn -= rank.eagerness;
  }
  return ranks_.back();
}

void Simulation::submit_next(SimulatedRank& rank) {
  const Submit call = std::move(rank.waiting.front());
  rank.waiting.pop_front();
  try {
    rank.operations.push_back({.work = call(*rank.communicator), .outcome = std::nullopt});
  } catch (const Error& error) {
    rank.operations.push_back({.work = Work(), .outcome = error.status()});
  }
}

void Simulation::strike() {
  if (event_ && turns_ >= event_turn_) std::exchange(event_, nullptr)();
}

bool Simulation::take_turn(SimulatedRank& rank) {
  strike();
  ++turns_;
  if (rank.dead) return false;
  const bool submits = !rank.waiting.empty() && random_.below(8) == 0;
  if (submits) submit_next(rank);
  return rank.engine->turn() || submits;
}

void Simulation::activate(int rank) {
  if (std::exchange(ranks_[index(rank)].may_act, true)) return;
  active_.push_back(rank);
}

// Random ranks among those that may have something to do take some turns, one after the other.
// Returns whether a rank may still have something to do.
bool Simulation::take_turns() {
  for (int i = 0; i < 4 * size(); ++i) {
    network_->pass(transport::sim::Time(random_.below(100)));
    for (const int rank : network_->take_awake()) activate(rank);
    if (active_.empty()) return false;
    int& place = active_[random_.below(active_.size())];
    SimulatedRank& rank = ranks_[index(place)];
    if (random_.below(kEagernessMax) >= rank.eagerness) continue;
    const bool moved = take_turn(rank);
    if (moved || (!rank.waiting.empty() && !rank.dead)) continue;
    rank.may_act = false;
    place = active_.back();
    active_.pop_back();
  }
  return true;
}

// Each rank takes a turn, even if nothing has happened to it. Returns whether anything moved.
bool Simulation::sweep() {
  bool moved = false;
  for (SimulatedRank& rank : ranks_) moved = take_turn(rank) || moved;
  return moved;
}

void Simulation::run() {
  for (int r = 0; r < size(); ++r) activate(r);
  bool goes_on = true;
  while (goes_on) {
    if (take_turns() || network_->skip()) continue;
    // If the event comes in the middle of the sweep, its effects are still to come.
    goes_on = event_ != nullptr;
    goes_on = sweep() || goes_on;
  }
  collect();
}

void Simulation::run(const Program& program) {
  network_->set_after_progress(
      [this](Rank rank, bool moved) { after_progress(ranks_[index(rank.value())], moved); });
  programs_ = size();
  std::vector<std::thread> threads;
  for (SimulatedRank& rank : ranks_) {
    rank.has_thread = true;
    threads.emplace_back([&] { run_on(rank, program); });
  }
  schedule_next();
  for (std::thread& thread : threads) thread.join();
  network_->set_after_progress(nullptr);
}

void Simulation::run_on(SimulatedRank& rank, const Program& program) {
  wait_for_turn(rank);
  program(*rank.communicator);
  --programs_;
  // This rank may still hold messages that others wait for.
  while (programs_ > 0) rank.engine->turn();
  rank.has_thread = false;
  schedule_next();
}

void Simulation::wait_for_turn(const SimulatedRank& rank) {
  std::unique_lock held(mutex_);
  rank.may_move->wait(held, [&] { return moving_ == &rank; });
}

void Simulation::schedule_next() {
  const auto has_thread = [](const SimulatedRank& rank) { return rank.has_thread; };
  if (std::none_of(ranks_.begin(), ranks_.end(), has_thread)) return;
  while (true) {
    SimulatedRank& next = draw_rank();
    if (!next.has_thread) continue;
    const std::lock_guard held(mutex_);
    moving_ = &next;
    return next.may_move->notify_one();
  }
}

// The clock stands still while something can move. By chance a rank may get no turn for a while,
// and a program may ask many times before it goes on: so only a long silence is the end.
void Simulation::after_progress(SimulatedRank& rank, bool moved) {
  constexpr int kSilence = 2000;
  constexpr std::uint64_t kTimeAtOnce = 100'000;
  ++turns_;
  strike();
  idle_turns_ = moved ? 0 : idle_turns_ + 1;
  if (moved && random_.below(4) != 0) return;  // Handing over takes longer than anything else here.
  if (idle_turns_ >= size() && network_->skip()) {
    network_->pass(transport::sim::Time(random_.below(kTimeAtOnce)));
    idle_turns_ = 0;
  }
  if (idle_turns_ > kSilence * size()) {
    stuck_ = true;
    idle_turns_ = 0;
    for (int r = 0; r < size(); ++r) network_->kill(r);
  }
  schedule_next();
  wait_for_turn(rank);
}

void Simulation::collect() {
  for (SimulatedRank& rank : ranks_) {
    for (Operation& operation : rank.operations) {
      if (!operation.outcome && operation.work.done()) {
        operation.outcome = operation.work.wait_status();
      }
    }
  }
}

std::vector<std::optional<Status>> Simulation::outcomes(int rank) const {
  std::vector<std::optional<Status>> outcomes;
  for (const Operation& operation : ranks_[index(rank)].operations) {
    outcomes.push_back(operation.outcome);
  }
  return outcomes;
}

}  // namespace stretto::simulation
