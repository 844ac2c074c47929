// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What happens to a training job when one of its three processes is killed or stopped in the middle
// of a backward pass.

#include <chrono>
#include <random>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "tests/end_to_end/tool.h"
#include "tests/support/expect_contains.h"
#include "tests/support/soon.h"

namespace stretto {
namespace {

using testing::Arguments;
using testing::Tool;

constexpr int kRanks = 3;
constexpr int kVictim = 1;

class Backward : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!STRETTO_TORCH_ENABLED) GTEST_SKIP() << "built without libtorch";
  }
  // Chooses a moment in training. It comes early enough that, if rank 1 is killed then, the other
  // ranks' last steps would run without it.
  static Arguments job(int signal, unsigned seed, int timeout_seconds = 600) {
    std::minstd_rand random(seed);
    (void)random();
    const auto step = 1 + random() % 15;
    const auto gradient = random() % 8;
    // Ranks ignore SIGTERM, so that survivors say what they know even on a busy machine.
    return {"run",
            "-n",
            std::to_string(kRanks),
            "--grace",
            "20",
            "--",
            STRETTO_BIN_DIR "/backward_rank_program",
            std::to_string(signal),
            std::to_string(step),
            std::to_string(gradient),
            std::to_string(timeout_seconds)};
  }
  // What follows `word` in the lines of the ranks that print it: "[2] trained 4711".
  static std::map<int, std::string> said(Tool& tool, const std::string& word) {
    std::map<int, std::string> result;
    std::istringstream lines(tool.output().so_far());
    for (std::string line; std::getline(lines, line);) {
      const std::string after_rank = "] " + word + " ";
      const auto at = line.find(after_rank);
      if (at != std::string::npos) {
        result[std::stoi(line.substr(1))] = line.substr(at + after_rank.size());
      }
    }
    return result;
  }
  static void expect_survivors_say(Tool& tool, const std::string& text) {
    for (int r = 0; r < kRanks; ++r) {
      if (r == kVictim) continue;
      EXPECT_TRUE(tool.output().wait_for(fmt::format("[{}] failed {}", r, text.substr(0, 7))));
    }
    for (const auto& [rank, failure] : said(tool, "failed")) {
      if (rank == kVictim) continue;
      expect_contains(failure, text.substr(0, text.find(' ')));
      expect_contains(failure, text.substr(text.find(' ') + 1));
    }
  }
};

TEST_F(Backward, AKilledRankIsNamedByTheOthersAtOnce) {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    Tool tool(job(SIGKILL, seed));
    ASSERT_TRUE(tool.output().wait_for("[1] now")) << "seed " << seed;
    const pid_t victim = std::stoi(said(tool, "ready")[kVictim]);
    // The system needs a while to take apart a process that has loaded libtorch.
    EXPECT_TRUE(testing::ends_soon(victim));
    const TimePoint begin = Clock::now();
    expect_survivors_say(tool, "PeerLost lost rank 1");
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(2)) << "seed " << seed;
    EXPECT_EQ(tool.status(), 128 + SIGKILL);
    EXPECT_EQ(said(tool, "trained").size(), 0u);
  }
}

class StoppedInBackward : public Backward {
 protected:
  // Waits until rank 1 has stopped itself; returns its process.
  static pid_t stopped_rank(Tool& tool) {
    EXPECT_TRUE(tool.output().wait_for("[1] now"));
    const pid_t pid = std::stoi(said(tool, "ready")[kVictim]);
    EXPECT_TRUE(comes_true([&] { return testing::state_of(pid) == "T"; }));
    return pid;
  }
  static std::set<std::string> hashes(Tool& tool) {
    EXPECT_EQ(tool.status(), 0) << tool.errors().finish();
    (void)tool.output().finish();
    std::set<std::string> different;
    const auto trained = said(tool, "trained");
    EXPECT_EQ(trained.size(), static_cast<std::size_t>(kRanks));
    for (const auto& [rank, hash] : trained) different.insert(hash);
    return different;
  }
};

TEST_F(StoppedInBackward, ARankCostsTimeAndNothingElse) {
  Tool undisturbed(job(0, 1));
  const std::set<std::string> right = hashes(undisturbed);
  EXPECT_EQ(right.size(), 1u);
  for (unsigned seed = 1; seed <= 2; ++seed) {
    Tool tool(job(SIGSTOP, seed));
    const pid_t pid = stopped_rank(tool);
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    EXPECT_EQ(said(tool, "trained").size(), 0u) << "the others wait";
    ::kill(pid, SIGCONT);
    EXPECT_EQ(hashes(tool), right) << "seed " << seed;
  }
}

TEST_F(StoppedInBackward, ARankThatDoesNotGoOnIsNamedWhenTimeIsUp) {
  Tool tool(job(SIGSTOP, 3, 3));
  const pid_t pid = stopped_rank(tool);
  expect_survivors_say(tool, "Timeout timed out waiting for rank 1");
  ::kill(pid, SIGCONT);
}

}  // namespace
}  // namespace stretto
