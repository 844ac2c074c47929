// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A rank that is stopped and continued costs the time for which it was stopped, and nothing else.

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "tests/end_to_end/tool.h"

namespace stretto {
namespace {

using std::chrono::milliseconds;
using testing::Arguments;
using testing::Tool;
using testing::Variables;

struct Setting {
  const char* name;
  int ranks;
  Variables variables;
};
std::ostream& operator<<(std::ostream& out, const Setting& setting) { return out << setting.name; }

class Pause : public ::testing::TestWithParam<Setting> {
 protected:
  Pause()
      : tool_(Arguments{"run", "-n", std::to_string(GetParam().ranks), "--",
                        STRETTO_BIN_DIR "/pause_rank_program"},
              GetParam().variables) {
    for (int r = 0; r < GetParam().ranks; ++r) {
      pids_.push_back(static_cast<pid_t>(number_behind(r, "ready")));
    }
  }

  void stop(int rank, milliseconds time) {
    ASSERT_GT(pid(rank), 0);
    ::kill(pid(rank), SIGSTOP);
    std::this_thread::sleep_for(time);
    for (const pid_t each : pids_) EXPECT_TRUE(testing::runs(each));
    ::kill(pid(rank), SIGCONT);
  }

  // Lets the job end, which all ranks and the launcher must find to be well; returns what the
  // longest round has taken on any rank.
  milliseconds longest_round() {
    if (pid(0) > 0) ::kill(pid(0), SIGUSR1);
    long longest = 0;
    for (int r = 0; r < GetParam().ranks; ++r)
      longest = std::max(longest, number_behind(r, "right"));
    EXPECT_EQ(tool_.status(), 0);
    EXPECT_EQ(tool_.errors().finish(), "");
    return milliseconds(longest);
  }

 private:
  pid_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }

  // The number in a line "[1] ready 4711" of a rank, once it is there; 0 if it never comes.
  long number_behind(int rank, const std::string& word) {
    const std::string begin = fmt::format("[{}] {} ", rank, word);
    const Deadline deadline = Deadline::after(std::chrono::seconds(20));
    while (!deadline.passed()) {
      const std::string output = tool_.output().so_far();
      const std::size_t at = output.find(begin);
      if (at != std::string::npos && output.find('\n', at) != std::string::npos) {
        return std::stol(output.substr(at + begin.size()));
      }
      std::this_thread::sleep_for(milliseconds(2));
    }
    ADD_FAILURE() << "no \"" << begin << "\" in: " << tool_.output().so_far();
    return 0;
  }

  Tool tool_;
  std::vector<pid_t> pids_;
};

TEST_P(Pause, OfASecondCostsASecond) {
  stop(1, milliseconds(1000));
  std::this_thread::sleep_for(milliseconds(100));
  const milliseconds longest = longest_round();
  EXPECT_GT(longest, milliseconds(900));
  EXPECT_LT(longest, milliseconds(2500));
}

// At as many places as possible of what a rank can be doing.
TEST_P(Pause, MayComeAgainAndAgain) {
  for (int i = 0; i < 60; ++i) {
    stop(i % GetParam().ranks, milliseconds(3 + i % 5));
    std::this_thread::sleep_for(milliseconds(1 + i % 3));
  }
  EXPECT_LT(longest_round(), milliseconds(3000));
}

INSTANTIATE_TEST_SUITE_P(
    , Pause,
    ::testing::Values(Setting{"shm_2", 2, {}}, Setting{"shm_3", 3, {}},
                      Setting{"single_copy_3", 3, {{"STRETTO_SINGLE_COPY", "always"}}},
                      Setting{"single_copy_2", 2, {{"STRETTO_SINGLE_COPY", "always"}}},
                      Setting{"tcp_3", 3, {{"STRETTO_TRANSPORT", "tcp"}}}),
    [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace stretto
