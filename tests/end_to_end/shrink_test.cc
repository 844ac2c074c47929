// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Jobs of processes that go on without ranks that are killed, at work or while they shrink.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <sstream>

#include <fmt/format.h>

#include "stretto/base/random.h"
#include "stretto/base/rank_vector.h"
#include "tests/end_to_end/tool.h"
#include "tests/support/expect_contains.h"

namespace stretto {
namespace {

using testing::Process;
using testing::Variables;

struct Role {
  std::string what = "lives";
  std::uint64_t microseconds = 0;
};

// The ranks of a shrink_rank_program job. There is no launcher, as it would end them all.
class Job {
 public:
  Job(const std::vector<Role>& roles, int timeout_seconds, const Variables& variables) {
    const auto left = std::ranges::count_if(
        roles, [](const Role& role) { return !role.what.starts_with("dies"); });
    for (std::size_t r = 0; r < roles.size(); ++r) {
      Variables own = variables;
      own.insert({{"STRETTO_RANK", std::to_string(r)},
                  {"STRETTO_SIZE", std::to_string(roles.size())},
                  {"STRETTO_RENDEZVOUS", "file://" + (folder_ / "store")}});
      ranks_.push_back(std::make_unique<Process>(
          testing::Arguments{STRETTO_BIN_DIR "/shrink_rank_program", std::to_string(left),
                             roles[r].what, std::to_string(roles[r].microseconds),
                             std::to_string(timeout_seconds)},
          own));
    }
  }

  Process& rank(int number) { return *ranks_[number]; }
  void wait_until_ready() {
    for (auto& rank : ranks_) EXPECT_TRUE(rank->output().wait_for("ready "));
  }

  struct Outcome {
    std::string failure;
    double worst_milliseconds = 0;
  };
  // Waits for all ranks. Those that live must all say that exactly they are left.
  Outcome end(const std::vector<Role>& roles) {
    Outcome outcome;
    int expected = 0;
    for (std::size_t r = 0; r < roles.size(); ++r) {
      if (!roles[r].what.starts_with("dies")) expected += 1 << r;
    }
    for (std::size_t r = 0; r < roles.size(); ++r) {
      const int status = ranks_[r]->status();
      if (roles[r].what.starts_with("dies")) continue;
      std::istringstream output(ranks_[r]->output().finish());
      int mask = 0;
      double milliseconds = 0;
      std::string said;
      for (std::string line; std::getline(output, line);) {
        if (line.starts_with("ready")) continue;
        said += line + "; ";
        std::istringstream words(line);
        words >> line >> mask >> milliseconds;
      }
      outcome.worst_milliseconds = std::max(outcome.worst_milliseconds, milliseconds);
      if (status == 0 && mask == expected && !said.starts_with("late")) continue;
      outcome.failure +=
          fmt::format("rank {}: status {}: {}{}\n", r, status, said, ranks_[r]->errors().finish());
    }
    return outcome;
  }

 private:
  const TemporaryFolder folder_;  // Outlives the ranks.
  RankVector<std::unique_ptr<Process>> ranks_;
};

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::stoull(text) : otherwise;
}

// STRETTO_SHRINK_RUNS=1000 runs 1000 jobs; STRETTO_SHRINK_SEED=n begins with seed n.
TEST(ShrinkProcesses, AgreeWhoeverDiesMeanwhile) {
  const std::uint64_t runs = from_environment("STRETTO_SHRINK_RUNS", 40);
  const std::uint64_t first = from_environment("STRETTO_SHRINK_SEED", 1);
  double worst_milliseconds = 0;
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    Random random(seed);
    std::vector<Role> roles(4 + random.below(3));
    // One rank dies at work, and up to two while all shrink because of that; a shrink takes some
    // milliseconds.
    const std::uint64_t deaths = 1 + random.below(3);
    for (std::uint64_t death = 0; death < deaths; ++death) {
      Role& role = roles[random.below(roles.size())];
      if (role.what != "lives") continue;
      role = death == 0 ? Role{"dies_at_work", random.below(3000)}
                        : Role{"dies_in_shrink", random.below(1ull << random.below(15))};
    }
    constexpr const char* kTransports[] = {"", "tcp"};
    const char* transport = kTransports[random.below(2)];
    Job job(roles, 60, {{"STRETTO_TRANSPORT", transport}});
    const Job::Outcome outcome = job.end(roles);
    worst_milliseconds = std::max(worst_milliseconds, outcome.worst_milliseconds);
    EXPECT_TRUE(outcome.failure.empty())
        << "STRETTO_SHRINK_RUNS=1 STRETTO_SHRINK_SEED=" << seed << "\n"
        << outcome.failure;
  }
  std::printf("%llu jobs; the longest shrink took %.1f ms\n", static_cast<unsigned long long>(runs),
              worst_milliseconds);
}

TEST(ShrinkProcesses, AStoppedRankIsWaitedForAndNamed) {
  const std::vector<Role> roles = {{}, {"dies_at_work", 300000}, {}};
  Job job(roles, 3, {});
  job.wait_until_ready();
  ::kill(job.rank(2).pid(), SIGSTOP);
  EXPECT_TRUE(job.rank(0).output().wait_for("late "));
  const std::string text = job.rank(0).output().so_far();
  for (const char* part : {"shrink on rank 0: timed out waiting for rank 2 (",
                           "), which does not answer: it is stopped"}) {
    expect_contains(text, part);
  }
  ::kill(job.rank(2).pid(), SIGCONT);
  EXPECT_EQ(job.rank(0).status(), 0) << job.rank(0).output().finish();
  EXPECT_EQ(job.rank(2).status(), 0) << job.rank(2).output().finish();
  expect_contains(job.rank(0).output().finish(), "left 5 ");
}

// If a group cannot be set up although nobody dies, ranks must not try for ever.
TEST(ShrinkProcesses, AllHearWhyTheGroupCannotBeSetUp) {
  const std::vector<Role> roles = {{}, {"dies_at_work", 1000}, {"poor"}, {}};
  Job job(roles, 60, {});
  const Job::Outcome outcome = job.end(roles);
  EXPECT_TRUE(outcome.failure.empty()) << outcome.failure;
  for (const int r : {0, 2, 3}) {
    const std::string output = job.rank(r).output().finish();
    expect_contains(output, "failed ");
    expect_contains(output, "Too many open files");
    EXPECT_EQ(output.find("rank 2 abandoned the group: ") == std::string::npos, r == 2) << output;
  }
}

}  // namespace
}  // namespace stretto
