// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/simulation/seeded_run.h"

#include <fmt/format.h>

#include "stretto/base/environment.h"

namespace stretto::simulation {
namespace {

using transport::sim::Wire;

constexpr int kRanksMax = 9;
constexpr std::uint64_t kSeeds = 1000;

std::optional<std::uint64_t> number(const std::string& variable) {
  const std::optional<std::string> text = process_environment().get(variable);
  return text ? std::optional(std::stoull(*text)) : std::nullopt;
}

}  // namespace

std::vector<std::uint64_t> seeds_of(int group, int step) {
  std::vector<std::uint64_t> seeds;
  const std::optional<std::uint64_t> first = number("STRETTO_SIMULATION_SEED");
  const std::uint64_t begin = first.value_or(0);
  const std::uint64_t count = number("STRETTO_SIMULATION_SEEDS").value_or(first ? 1 : kSeeds);
  // Named seeds are all run.
  const auto stride = static_cast<std::uint64_t>(first ? kSeedGroups : kSeedGroups * step);
  for (auto seed = static_cast<std::uint64_t>(group); seed < count; seed += stride) {
    seeds.push_back(begin + seed);
  }
  return seeds;
}

std::string replay_command(const std::string& filter, std::uint64_t seed) {
  return fmt::format("replay: STRETTO_SIMULATION_SEED={} {}/simulation_test --gtest_filter='{}'",
                     seed, STRETTO_BIN_DIR, filter);
}

SeededRun::SeededRun(std::uint64_t seed, const Options& options) : options_(options) {
  Random random(seed * 3 + (options.kills ? 1 : 0) + (options.fault == Wire::Fault::none ? 0 : 2));
  const bool lonely = !options.kills && options.fault == Wire::Fault::none;
  const auto fewest = lonely ? 1u : 2u;
  const auto drawn = static_cast<int>(fewest + random.below(kRanksMax + 1 - fewest));
  const int ranks = static_cast<int>(
      number("STRETTO_SIMULATION_RANKS").value_or(static_cast<std::uint64_t>(drawn)));
  simulation_ =
      std::make_unique<Simulation>(Simulation::Options{.ranks = ranks, .seed = random.next()});
  const std::uint64_t operations = 1 + random.below(6);
  for (std::uint64_t i = 0; i < operations; ++i) {
    scenarios_.push_back(
        Scenario::draw(random, {.ranks = ranks, .sensitive = options.fault == Wire::Fault::flip}));
    for (int r = 0; r < ranks; ++r) {
      simulation_->submit(r, [scenario = scenarios_.back().get()](Communicator& comm) {
        return scenario->begin(comm);
      });
    }
  }
  faulty_ = static_cast<int>(random.below(static_cast<std::uint64_t>(ranks)));
  if (ranks == 1) return;
  const auto others = static_cast<std::uint64_t>(ranks - 1);
  other_ = (faulty_ + 1 + static_cast<int>(random.below(others))) % ranks;
  simulation_->network().wire(faulty_, other_).arm(options.fault);
  if (options.kills) simulation_->kill_at(random.below(2000), faulty_);
}

void SeededRun::go() {
  simulation_->run();
  if (!options_.kills) return;
  // Whoever has got through all of it before the death asks once more.
  for (int r = 0; r < size(); ++r) {
    simulation_->submit(r, [](Communicator& comm) { return comm.barrier(); });
  }
  simulation_->run();
}

bool SeededRun::struck() const {
  return size() > 1 && simulation_->network().struck(faulty_, other_);
}

std::string SeededRun::trouble_of(int rank, std::size_t operation,
                                  const std::optional<Status>& outcome, bool may_fail) const {
  const std::string what =
      operation < scenarios_.size() ? scenarios_[operation]->describe() : "barrier()";
  const auto said = [&](std::string_view text) {
    return fmt::format("operation {} on rank {}, {}: {}", operation, rank, what, text);
  };
  if (!outcome) return said("has not ended, and nothing can move any more");
  if (outcome->ok() && operation < scenarios_.size()) {
    const std::string wrong = scenarios_[operation]->check(rank);
    return wrong.empty() ? "" : said(wrong);
  }
  if (outcome->ok()) return {};
  if (!may_fail) return said(outcome->message());
  const std::string culprit = fmt::format("rank {}", faulty_);
  if (outcome->message().find(culprit) != std::string_view::npos) return {};
  return said(fmt::format("does not name {}: {}", culprit, outcome->message()));
}

std::string SeededRun::trouble() const {
  for (int r = 0; r < size(); ++r) {
    const auto outcomes = simulation_->outcomes(r);
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      const std::string text = trouble_of(r, i, outcomes[i], false);
      if (!text.empty()) return text;
    }
  }
  return {};
}

std::string SeededRun::trouble_after_death() const {
  for (int r = 0; r < size(); ++r) {
    if (r == faulty_) continue;
    const auto outcomes = simulation_->outcomes(r);
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      const std::string text = trouble_of(r, i, outcomes[i], true);
      if (!text.empty()) return text;
    }
    if (outcomes.empty() || (outcomes.back() && outcomes.back()->ok())) {
      return fmt::format("rank {} has not noticed the death of rank {}", r, faulty_);
    }
  }
  return {};
}

std::string SeededRun::describe() const {
  std::string text = fmt::format("{} ranks, {} turns, virtual time {} ns", size(),
                                 simulation_->turns(), simulation_->network().now().count());
  for (std::size_t i = 0; i < scenarios_.size(); ++i) {
    text += fmt::format("\n  {}: {}", i, scenarios_[i]->describe());
  }
  return text;
}

}  // namespace stretto::simulation
