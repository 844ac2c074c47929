// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stretto/base/rank_vector.h"
#include "tests/simulation/scenario.h"
#include "tests/simulation/simulation.h"

namespace stretto::simulation {

// All seeds are dealt out to this many groups, so that progress can be seen, and several processes
// can share the work.
inline constexpr int kSeedGroups = 10;

// The seeds of one group: of the thousand that are always run (a hundred under AddressSanitizer),
// or of the seeds that the environment names.
std::vector<std::uint64_t> seeds_of(int group);

// A line for a shell that runs one seed again.
std::string replay_command(const std::string& filter, std::uint64_t seed);

// What one seed draws: a world and a sequence of operations in it.
class SeededRun {
 public:
  // What happens to the world at some moment.
  enum class Event {
    none,
    kill,      // A rank dies.
    cut,       // A link between two ranks ends.
    disagree,  // A rank calls another operation than the others.
  };
  struct Options {
    Event event = Event::none;
    transport::sim::Wire::Fault fault = transport::sim::Wire::Fault::none;  // On some link.
    std::optional<int> ranks = std::nullopt;  // Otherwise drawn, or from the environment.
  };
  SeededRun(std::uint64_t seed, const Options& options);

  int size() const { return simulation_->size(); }
  void go();
  // What is wrong after go(); empty if nothing is. Names the first operation that failed.
  std::string failure() const;
  // The same after an event. Operations may fail then, if they say why, and in the end every rank
  // that is left must have heard of the event.
  std::string failure_after_event() const;
  // Whether the fault has happened.
  bool struck() const;
  std::string describe() const;

 private:
  std::string failure_of(int rank, std::size_t operation, const std::optional<Status>& outcome,
                         bool may_fail) const;
  bool says_why(std::string_view message) const;
  void submit_disagreement();

  Options options_;
  group::HostList hosts_;
  std::vector<std::unique_ptr<Scenario>> scenarios_;
  RankVector<std::vector<float>> odd_;      // Of the disagreement.
  std::unique_ptr<Simulation> simulation_;  // Destroyed before its operations' buffers.
  int faulty_ = 0;  // The rank to which the event happens, or that sends the faulty message.
  int other_ = 0;   // That message's receiver, or the other end of the link that is cut.
};

}  // namespace stretto::simulation
