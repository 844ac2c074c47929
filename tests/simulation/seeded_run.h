// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/scenario.h"
#include "tests/simulation/simulation.h"

namespace stretto::simulation {

// The seeds of all tests are dealt out to this many, so that one sees how far they are and several
// processes can share the work.
inline constexpr int kSeedGroups = 10;

// The seeds of one group: of the thousand that are always run (every `step`th of them), or of those
// that the environment names.
std::vector<std::uint64_t> seeds_of(int group, int step = 1);

// One line for a shell that runs one seed again.
std::string replay_command(const std::string& filter, std::uint64_t seed);

// What one seed draws: a world and a sequence of operations in it.
class SeededRun {
 public:
  struct Options {
    bool kills = false;  // A rank, at some moment.
    transport::sim::Wire::Fault fault = transport::sim::Wire::Fault::none;  // On some link.
  };
  SeededRun(std::uint64_t seed, const Options& options);

  int size() const { return simulation_->size(); }
  void go();
  // What is wrong after go(); empty: nothing. Names the first operation that failed.
  std::string trouble() const;
  // The same where a rank was killed: then operations may fail, if they say why.
  std::string trouble_after_death() const;
  // Whether the fault has happened.
  bool struck() const;
  std::string describe() const;

 private:
  std::string trouble_of(int rank, std::size_t operation, const std::optional<Status>& outcome,
                         bool may_fail) const;

  Options options_;
  std::vector<std::unique_ptr<Scenario>> scenarios_;
  std::unique_ptr<Simulation> simulation_;  // Ends before the buffers of its operations.
  int faulty_ = 0;                          // The rank that is killed, or whose message is hit,
  int other_ = 0;                           // on its way to this one.
};

}  // namespace stretto::simulation
