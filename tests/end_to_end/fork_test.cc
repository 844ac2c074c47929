// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Ranks that fork: the child has a copy of every socket and of all shared memory.

#include <sstream>

#include <fmt/format.h>

#include "tests/end_to_end/tool.h"

namespace stretto {
namespace {

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
  for (int r = 0; r < 3; ++r) {
    ASSERT_TRUE(tool.output().wait_for(fmt::format("[{}] ready ", r))) << "rank " << r;
  }
  std::istringstream words(
      tool.output().so_far().substr(tool.output().so_far().find("[1] ready ")));
  std::string word;
  pid_t victim = 0;
  words >> word >> word >> victim;
  const TimePoint begin = Clock::now();
  ASSERT_EQ(::kill(victim, SIGKILL), 0);
  for (const char* rank : {"[0]", "[2]"}) {
    EXPECT_TRUE(tool.output().wait_for(fmt::format("{} failed ", rank)));
  }
  // It is a second where the machine has nothing else to do.
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  const std::string output = tool.output().so_far();
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "lost rank 1", output);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, fmt::format("its process (pid {}) has ended", victim),
                      output);
}

TEST_P(Fork, ALeavingIsNoticedThoughAChildHasTheSockets) {
  Tool tool = start(2, "leaves");
  EXPECT_TRUE(tool.output().wait_for("[1] right"));
  EXPECT_TRUE(tool.output().wait_for("[0] failed "));
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "barrier() #2 on rank 0: rank 1 has ",
                      tool.output().so_far());
}

TEST_P(Fork, AChildThatUsesTheCommunicatorIsToldAndHarmsNobody) {
  Tool tool = start(2, "misuses");
  const testing::Ended ended = testing::end_of(tool);
  EXPECT_EQ(ended.status, 0);
  for (const int rank : {0, 1}) {
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, fmt::format("[{}] right", rank), ended.output);
    EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                        fmt::format("child: this process was forked from rank {}, ", rank),
                        ended.output);
  }
}

INSTANTIATE_TEST_SUITE_P(, Fork, ::testing::Values("shm", "tcp"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace stretto
