// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "stretto/communicator/communicator.h"
#include "stretto/group/engine.h"
#include "stretto/group/link_model.h"
#include "tests/support/simulated_world.h"

namespace stretto::simulation {

// A job whose ranks share one thread and a simulated network. A seed decides which rank moves when,
// how fast bytes travel and how they are cut. What the ranks do is submitted beforehand; run() lets
// each rank do it, in its own order and at moments of its own.
class Simulation {
 public:
  struct Options {
    int ranks = 1;
    std::uint64_t seed = 0;
    // The host of each rank, for algorithms that use hosts; empty: all on one. No rank maps memory.
    group::HostList hosts = {};
  };
  explicit Simulation(const Options& options);
  // Aborts what is in flight.
  ~Simulation();
  Simulation(const Simulation&) = delete;

  int size() const { return static_cast<int>(ranks_.size()); }
  transport::sim::Network& network() { return *network_; }

  using Submit = std::function<Work(Communicator&)>;
  void submit(int rank, Submit call) { ranks_[index(rank)].waiting.push_back(std::move(call)); }

  // When `turn` turns have been taken, kills a rank, which then takes part in nothing any more; or
  // cuts the link between two ranks. There is one such event per simulation.
  void kill_at(std::uint64_t turn, int rank);
  void cut_at(std::uint64_t turn, int rank, int other);

  // Lets the ranks do what has been submitted until nothing can move any more. May be called again.
  void run();
  std::uint64_t turns() const { return turns_; }

  // Runs a program that may block on each rank, on a thread of its own, instead of what was
  // submitted. One thread at a time moves; where it makes progress, the seed draws the next one. A
  // program must not throw.
  using Program = std::function<void(Communicator&)>;
  void run(const Program& program);
  // Whether that run() had ranks that waited when nothing could move any more; it cut all links
  // then.
  bool was_stuck() const { return stuck_; }

  // How each operation of a rank ended, in the order of submission. After run(), an operation
  // without an outcome will never end.
  std::vector<std::optional<Status>> outcomes(int rank) const;

 private:
  struct Operation {
    Work work;
    std::optional<Status> outcome;
  };
  struct SimulatedRank {
    std::shared_ptr<group::Engine> engine;
    std::unique_ptr<Communicator> communicator;
    std::deque<Submit> waiting;
    std::vector<Operation> operations;
    std::uint64_t eagerness = 1;  // How often it gets a turn, compared with others.
    bool may_act = false;         // It is among active_.
    bool dead = false;
    bool has_thread = false;  // Whether its program's thread has not ended.
    std::unique_ptr<std::condition_variable> may_move = std::make_unique<std::condition_variable>();
  };
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  SimulatedRank& draw_rank();
  void activate(int rank);
  bool sweep();
  void submit_next(SimulatedRank& rank);
  bool take_turns();
  bool take_turn(SimulatedRank& rank);
  void collect();
  void run_on(SimulatedRank& rank, const Program& program);
  void wait_for_turn(const SimulatedRank& rank);
  void schedule_next();
  void after_progress(SimulatedRank& rank, bool moved);
  void strike();

  Random random_;
  std::shared_ptr<transport::sim::Network> network_;
  std::vector<SimulatedRank> ranks_;
  std::uint64_t eagerness_total_ = 0;
  // Ranks that may have something to do: others get no turns.
  std::vector<int> active_;
  std::uint64_t turns_ = 0;
  std::uint64_t event_turn_ = 0;
  std::function<void()> event_;  // The event to come; null if there is none.
  int programs_ = 0;             // Programs that have not ended.
  int idle_turns_ = 0;           // Since something, or the clock, has moved.
  bool stuck_ = false;
  std::mutex mutex_;  // Guards moving_, whose thread may move.
  const SimulatedRank* moving_ = nullptr;
};

}  // namespace stretto::simulation
