// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/simulation/seeded_run.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stretto/base/environment.h"

namespace stretto::simulation {
namespace {

using transport::sim::Wire;

constexpr int kRanksMax = 9;
#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kSeeds = 100;  // Each takes ten times as long, with the same code.
#else
constexpr std::uint64_t kSeeds = 1000;
#endif

std::optional<std::uint64_t> number(const std::string& variable) {
  const std::optional<std::string> text = process_environment().get(variable);
  return text ? std::optional(std::stoull(*text)) : std::nullopt;
}

// In a third of the worlds all ranks are on one host; in another third they lie in the order of
// hosts. Many ranks are on one host: for a placement without a proof from tests, a program would
// prove its schedules itself.
group::HostList draw_hosts(Random random, int ranks) {
  group::HostList hosts;
  if (ranks > kRanksMax || random.below(3) == 0) return hosts;
  const std::uint64_t count = 2 + random.below(3);
  for (int rank = 0; rank < ranks; ++rank) {
    hosts.push_back(static_cast<std::int32_t>(random.below(count)));
  }
  if (random.below(2) == 0) std::ranges::sort(hosts);
  return hosts;
}

}  // namespace

std::vector<std::uint64_t> seeds_of(int group) {
  std::vector<std::uint64_t> seeds;
  const std::optional<std::uint64_t> first = number("STRETTO_SIMULATION_SEED");
  const std::uint64_t begin = first.value_or(0);
  const std::uint64_t count = number("STRETTO_SIMULATION_SEEDS").value_or(first ? 1 : kSeeds);
  for (auto seed = static_cast<std::uint64_t>(group); seed < count; seed += kSeedGroups) {
    seeds.push_back(begin + seed);
  }
  return seeds;
}

std::string replay_command(const std::string& filter, std::uint64_t seed) {
  return fmt::format("replay: STRETTO_SIMULATION_SEED={} {}/simulation_test --gtest_filter='{}'",
                     seed, STRETTO_BIN_DIR, filter);
}

SeededRun::SeededRun(std::uint64_t seed, const Options& options) : options_(options) {
  Random random(seed);
  const bool undisturbed = options.event == Event::none && options.fault == Wire::Fault::none;
  const auto fewest = undisturbed ? 1u : 2u;
  const auto drawn = static_cast<int>(fewest + random.below(kRanksMax + 1 - fewest));
  const auto asked_for = static_cast<int>(
      number("STRETTO_SIMULATION_RANKS").value_or(static_cast<std::uint64_t>(drawn)));
  const int ranks = options.ranks.value_or(asked_for);
  hosts_ = draw_hosts(Random(seed + 1'000'000), ranks);
  simulation_ = std::make_unique<Simulation>(
      Simulation::Options{.ranks = ranks, .seed = random.next(), .hosts = hosts_});
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
  const std::uint64_t turn = random.below(2000);
  if (options.event == Event::kill) simulation_->kill_at(turn, faulty_);
  if (options.event == Event::cut) simulation_->cut_at(turn, faulty_, other_);
  if (options.event == Event::disagree) submit_disagreement();
}

void SeededRun::submit_disagreement() {
  for (int r = 0; r < size(); ++r) {
    simulation_->submit(r, [this](Communicator& comm) {
      odd_.resize(static_cast<std::size_t>(size()));
      auto& data = odd_[comm.rank()];
      data.resize(comm.rank().value() == faulty_ ? 11 : 10);
      return comm.all_reduce(data);
    });
  }
}

void SeededRun::go() {
  simulation_->run();
  if (options_.event == Event::none) return;
  // Ranks that had got through all operations before the event learn of it from one more.
  for (int r = 0; r < size(); ++r) {
    simulation_->submit(r, [](Communicator& comm) { return comm.barrier(); });
  }
  simulation_->run();
}

bool SeededRun::struck() const {
  return size() > 1 && simulation_->network().struck(faulty_, other_);
}

std::string SeededRun::failure_of(int rank, std::size_t operation,
                                  const std::optional<Status>& outcome, bool may_fail) const {
  const std::string what =
      operation < scenarios_.size() ? scenarios_[operation]->describe() : "after all others";
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
  if (says_why(outcome->message())) return {};
  return said(
      fmt::format("does not say what happened to rank {}: {}", faulty_, outcome->message()));
}

bool SeededRun::says_why(std::string_view message) const {
  const auto says = [&](const std::string& text) {
    return message.find(text) != std::string_view::npos;
  };
  switch (options_.event) {
    case Event::kill:
      return says(fmt::format("lost rank {} ", faulty_));
    case Event::cut:
      return says(fmt::format("lost rank {} ", faulty_)) ||
             says(fmt::format("lost rank {} ", other_));
    case Event::disagree:
      return says(fmt::format("rank {} called all_reduce(sum f32 [11])", faulty_)) &&
             says("First difference: count");
    case Event::none:
      break;
  }
  return false;
}

std::string SeededRun::failure() const {
  for (int r = 0; r < size(); ++r) {
    const auto outcomes = simulation_->outcomes(r);
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      const std::string text = failure_of(r, i, outcomes[i], false);
      if (!text.empty()) return text;
    }
  }
  return {};
}

std::string SeededRun::failure_after_event() const {
  for (int r = 0; r < size(); ++r) {
    if (r == faulty_ && options_.event == Event::kill) continue;
    const auto outcomes = simulation_->outcomes(r);
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      const std::string text = failure_of(r, i, outcomes[i], true);
      if (!text.empty()) return text;
    }
    if (outcomes.empty() || (outcomes.back() && outcomes.back()->ok())) {
      return fmt::format("rank {} has not noticed what happened to rank {}", r, faulty_);
    }
  }
  return {};
}

std::string SeededRun::describe() const {
  std::string text = fmt::format("{} ranks, {} turns, virtual time {} ns", size(),
                                 simulation_->turns(), simulation_->network().now().count());
  if (!hosts_.empty()) text += fmt::format(", on hosts {}", fmt::join(hosts_, " "));
  for (std::size_t i = 0; i < scenarios_.size(); ++i) {
    text += fmt::format("\n  {}: {}", i, scenarios_[i]->describe());
  }
  return text;
}

}  // namespace stretto::simulation
