// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "stretto/base/cores.h"
#include "stretto/base/rank_vector.h"
#include "tests/end_to_end/tool.h"
#include "tests/support/expect_contains.h"

namespace stretto {
namespace {

// Ranks that fork: the child has a copy of every socket and of all shared memory.

using testing::Arguments;
using testing::Tool;

class Fork : public ::testing::TestWithParam<const char*> {
 protected:
  static Tool start(int ranks, const char* mode) {
    return Tool(Arguments{"run", "-n", std::to_string(ranks), "--",
                          STRETTO_BIN_DIR "/fork_rank_program", mode},
                {{"STRETTO_TRANSPORT", GetParam()}});
  }
};

TEST_P(Fork, TheDeathOfARankIsNoticedThoughAChildOfItLives) {
  Tool tool = start(3, "works");
  const pid_t victim = testing::ready_ranks(tool, 3)[1];
  const TimePoint begin = Clock::now();
  ASSERT_EQ(::kill(victim, SIGKILL), 0);
  for (const char* rank : {"[0]", "[2]"}) {
    EXPECT_TRUE(tool.output().wait_for(fmt::format("{} failed ", rank)));
  }
  // It takes a second on a machine that has nothing else to do.
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  const std::string output = tool.output().so_far();
  expect_contains(output, "lost rank 1");
  expect_contains(output, fmt::format("pid {}): killed by SIGKILL", victim));
}

TEST_P(Fork, ALeavingIsNoticedThoughAChildHasTheSockets) {
  Tool tool = start(2, "leaves");
  EXPECT_TRUE(tool.output().wait_for("[1] right"));
  EXPECT_TRUE(tool.output().wait_for("[0] failed "));
  expect_contains(tool.output().so_far(), "barrier() #2 on rank 0: rank 1 has ");
}

TEST_P(Fork, AChildThatUsesTheCommunicatorIsToldAndHarmsNobody) {
  Tool tool = start(2, "misuses");
  const testing::Ended ended = testing::end_of(tool);
  EXPECT_EQ(ended.status, 0);
  for (const int rank : {0, 1}) {
    expect_contains(ended.output, fmt::format("[{}] right", rank));
    expect_contains(ended.output,
                    fmt::format("child: this process was forked from rank {}, ", rank));
  }
}

INSTANTIATE_TEST_SUITE_P(, Fork, ::testing::Values("shm", "tcp"),
                         [](const auto& tested) { return std::string(tested.param); });

// What happens to a job when one rank lacks descriptors or address space for a while.

using testing::Ended;

struct Shortfall {
  const char* what;
  const char* where;
  const char* remedy;
};
std::ostream& operator<<(std::ostream& out, const Shortfall& setting) {
  return out << setting.what << "_" << setting.where;
}

Ended run_short(const char* what, const char* how_long, const char* where) {
  return testing::run(Arguments{"run", "-n", "3", "--", STRETTO_BIN_DIR "/shortage_rank_program",
                                what, how_long, where});
}

void expect_unseen(const Ended& ended) {
  EXPECT_EQ(ended.status, 0);
  for (const char* rank : {"[0]", "[1]", "[2]"}) {
    expect_contains(ended.output, fmt::format("{} right", rank));
  }
  EXPECT_EQ(ended.errors, "");
}

class Shortage : public ::testing::TestWithParam<Shortfall> {};

TEST_P(Shortage, GoesUnseenIfItIsOverSoon) {
  expect_unseen(run_short(GetParam().what, "passing", GetParam().where));
}

TEST(ShortageOfScratch, GoesUnseenIfItIsOverSoon) {
  expect_unseen(run_short("addresses", "passing", "scale"));
}

// The operation has a timeout of 40 s; the whole test takes less.
TEST_P(Shortage, IsTheCauseThatAllRanksHearOfIfItLasts) {
  const TimePoint begin = Clock::now();
  const Ended ended = run_short(GetParam().what, "lasting", GetParam().where);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));
  for (const char* rank : {"[0]", "[1]", "[2]"}) {
    expect_contains(ended.output, fmt::format("{} failed 2: ", rank));
  }
  EXPECT_EQ(testing::occurrences(ended.output, GetParam().remedy), 3u) << ended.output;
}

INSTANTIATE_TEST_SUITE_P(, Shortage,
                         ::testing::Values(Shortfall{"files", "reduce", "; raise `ulimit -n`"},
                                           Shortfall{"addresses", "reduce", "; raise `ulimit -v`"},
                                           Shortfall{"files", "split", "; raise `ulimit -n`"},
                                           Shortfall{"addresses", "split", "; raise `ulimit -v`"}),
                         ::testing::PrintToStringParamName());

// A rank that is stopped and continued costs the time for which it was stopped, and nothing else.

using std::chrono::milliseconds;
using testing::Variables;

struct Setting {
  const char* name;
  int ranks;
  Variables variables;
};
std::ostream& operator<<(std::ostream& out, const Setting& setting) { return out << setting.name; }

class Pause : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    const auto& [name, ranks, variables] = GetParam();
    if (name == std::string("ucx_3") && !testing::has_ucx())
      GTEST_SKIP() << "no UCX: CMake found none";
    tool_.emplace(
        Arguments{"run", "-n", std::to_string(ranks), "--", STRETTO_BIN_DIR "/pause_rank_program"},
        variables);
    pids_ = testing::ready_ranks(*tool_, ranks);
  }

  void stop(int rank, milliseconds time) {
    ::kill(pid(rank), SIGSTOP);
    std::this_thread::sleep_for(time);
    for (const pid_t each : pids_) EXPECT_TRUE(testing::runs(each));
    ::kill(pid(rank), SIGCONT);
  }

  // Ends the job, which must end well for all ranks and the launcher. Returns how long the longest
  // round took on any rank.
  milliseconds longest_round() {
    ::kill(pid(0), SIGUSR1);
    long longest = 0;
    for (int r = 0; r < GetParam().ranks; ++r) {
      longest = std::max(longest, testing::number_behind(*tool_, r, "right"));
    }
    EXPECT_EQ(tool_->status(), 0);
    EXPECT_EQ(tool_->errors().finish(), "");
    return milliseconds(longest);
  }

 private:
  pid_t pid(int rank) const { return pids_[rank]; }

  std::optional<Tool> tool_;
  RankVector<pid_t> pids_;
};

TEST_P(Pause, OfASecondCostsASecond) {
  stop(1, milliseconds(1000));
  std::this_thread::sleep_for(milliseconds(100));
  const milliseconds longest = longest_round();
  EXPECT_GT(longest, milliseconds(900));
  EXPECT_LT(longest, milliseconds(2500));
}

// The stops come at as many places as possible in what a rank does.
TEST_P(Pause, MayComeAgainAndAgain) {
  for (int i = 0; i < 60; ++i) {
    stop(i % GetParam().ranks, milliseconds(3 + i % 5));
    std::this_thread::sleep_for(milliseconds(1 + i % 3));
  }
  EXPECT_LT(longest_round(), milliseconds(3000));
}

const auto kSettings = ::testing::Values(
    Setting{"shm_2", 2, {}}, Setting{"shm_3", 3, {}},
    Setting{"single_copy_3", 3, {{"STRETTO_SINGLE_COPY", "always"}}},
    Setting{"single_copy_2", 2, {{"STRETTO_SINGLE_COPY", "always"}}},
    Setting{"tcp_3", 3, {{"STRETTO_TRANSPORT", "tcp"}}},
    Setting{"tls_3", 3, {{"STRETTO_TRANSPORT", "tcp"}, {"STRETTO_ENCRYPTION", "tls"}}});
const auto kNameOfSetting = [](const auto& tested) { return std::string(tested.param.name); };
INSTANTIATE_TEST_SUITE_P(, Pause, kSettings, kNameOfSetting);
INSTANTIATE_TEST_SUITE_P(OverUcx, Pause,
                         ::testing::Values(Setting{"ucx_3", 3, {{"STRETTO_TRANSPORT", "ucx"}}}),
                         kNameOfSetting);

class Interrupted : public ::testing::TestWithParam<Setting> {};

// Signals come from joining on, whatever a rank waits for.
TEST_P(Interrupted, ByThousandsOfSignalsASecondNothingFails) {
  const Ended ended = testing::run(Arguments{"run", "-n", std::to_string(GetParam().ranks), "--",
                                             STRETTO_BIN_DIR "/pause_rank_program", "signals"},
                                   GetParam().variables);
  EXPECT_EQ(ended.status, 0) << ended.output << ended.errors;
  EXPECT_EQ(ended.errors, "");
}

INSTANTIATE_TEST_SUITE_P(, Interrupted, kSettings, kNameOfSetting);

// On mapped memory, if each rank has a core, a collective that has run before makes no system call
// and takes no lock.

constexpr const char* kCountedAtAll = "a question for the parent, locked";
constexpr std::size_t kNames = 10;
constexpr int kAttempts = 10;
// Of both ranks together in a run of some milliseconds: about twenty, but hundreds on a shared
// core.
constexpr int kInterruptionsMax = 100;

Ended run_once() {
  return testing::run(
      Arguments{"run", "-n", "2", "--no-prefix", "--", STRETTO_BIN_DIR "/system_call_rank_program"},
      {});
}

// How many calls of a thousand made a system call or took a lock, on the rank with more.
struct Counts {
  int calls = 0;
  int locked = 0;
};

struct Counted {
  std::map<std::string, Counts> counts;  // By the name of the collective.
  int interruptions = 0;
};

Counted read(const std::string& output) {
  Counted run;
  std::istringstream lines(output);
  std::string line;
  while (std::getline(lines, line)) {
    int calls = 0;
    int locked = 0;
    int interruptions = 0;
    if (std::sscanf(line.c_str(), "interrupted %d", &interruptions) == 1) {
      run.interruptions += interruptions;
    } else if (std::sscanf(line.c_str(), "%d and %d of 1000:", &calls, &locked) == 2) {
      Counts& counts = run.counts[line.substr(line.find(": ") + 2)];
      counts.calls = std::max(counts.calls, calls);
      counts.locked = std::max(counts.locked, locked);
    }
  }
  return run;
}

bool are_few(const Counted& run) {
  return std::ranges::all_of(run.counts, [](const auto& entry) {
    const auto& [name, counts] = entry;
    return name == kCountedAtAll || (counts.calls < 100 && counts.locked < 100);
  });
}

// If a rank's core does something else for a while, the rank is late; the other one then takes a
// lock to wait, and sleeps. Such runs say nothing, so the best of several runs counts.
TEST(SystemCall, IsNotMadeByWhatHasRunBeforeNorALockTaken) {
  if (usable_cores() < 2) GTEST_SKIP() << "skipped: ranks that share a core yield it";
  bool always_disturbed = true;
  Ended ended;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    ended = run_once();
    ASSERT_EQ(ended.status, 0) << ended.output << ended.errors;
    if (ended.output.find("cannot count") != std::string::npos) {
      GTEST_SKIP() << "skipped: " << ended.output;
    }
    const Counted run = read(ended.output);
    ASSERT_EQ(run.counts.size(), kNames) << ended.output;
    ASSERT_EQ(run.counts.at(kCountedAtAll).calls, 1000);
    ASSERT_EQ(run.counts.at(kCountedAtAll).locked, 1000);
    if (are_few(run)) return;
    always_disturbed = always_disturbed && run.interruptions > kInterruptionsMax;
  }
  if (always_disturbed) GTEST_SKIP() << "skipped: something else uses the cores";
  FAIL() << ended.output;
}

}  // namespace
}  // namespace stretto
