// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/simulation/simulation.h"

#include "stretto/communicator/scheduled_backend.h"

namespace stretto::simulation {

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
        ScheduledBackend::make_world(rank.engine, {.share_windows = false}).or_throw();
    // Some ranks are ten times as slow as others.
    rank.eagerness = random_.below(3) == 0 ? 1 : 10;
    eagerness_total_ += rank.eagerness;
  }
}

// Nobody takes turns any more, so a Work that is not done would be waited for in vain.
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

bool Simulation::take_turn(SimulatedRank& rank) {
  if (event_ && turns_ >= event_turn_) std::exchange(event_, nullptr)();
  ++turns_;
  if (rank.dead) return false;
  const bool submits = !rank.waiting.empty() && random_.below(8) == 0;
  if (submits) submit_next(rank);
  return rank.engine->turn() || submits;
}

// Some turns of random ranks. Returns whether anything moved.
bool Simulation::take_turns() {
  bool moved = false;
  for (int i = 0; i < 4 * size(); ++i) {
    network_->pass(transport::sim::Time(random_.below(100)));
    moved = take_turn(draw_rank()) || moved;
  }
  return moved;
}

void Simulation::run() {
  while (true) {
    if (take_turns()) continue;
    // Chance may have left out the one that can move. The clock stands still meanwhile, or
    // something might arrive at a rank that has just been asked.
    bool moved = false;
    for (SimulatedRank& rank : ranks_) {
      moved = take_turn(rank) || (!rank.dead && !rank.waiting.empty()) || moved;
    }
    if (!moved && !network_->skip() && !event_) break;
  }
  collect();
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
