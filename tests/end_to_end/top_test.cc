// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <nlohmann/json.hpp>

#include "tests/end_to_end/tool.h"
#include "tests/support/expect_contains.h"

namespace stretto {
namespace {

using testing::Arguments;
using testing::Tool;

constexpr int kRanks = 3;

// `stretto top` watches three ranks, of which rank 1 keeps the others waiting.
class Top : public ::testing::Test {
 protected:
  void SetUp() override {
    pids_ = testing::ready_ranks(job_, kRanks);
    const auto is_loading = [&] {
      const auto ranks = look("1");
      return ranks.size() == kRanks && ranks[1]["doing"].template get<std::string>().ends_with(
                                           "; in its own code: loading data");
    };
    ASSERT_TRUE(comes_true(is_loading, Deadline::after(std::chrono::seconds(30))));
  }

  // Our ranks in the output of --json; other jobs may run here, too.
  nlohmann::json look(const char* interval) {
    const auto ended = testing::run({"top", "--once", "--json", "--interval", interval});
    if (ended.status != 0) return {};
    const auto all = nlohmann::json::parse(ended.output);
    for (const auto& job : all["jobs"]) {
      if (job["ranks"][0]["pid"] == pids_[0] && job["size"] == kRanks) return job["ranks"];
    }
    return {};
  }

  Tool job_{
      Arguments{"run", "-n", std::to_string(kRanks), "--", STRETTO_BIN_DIR "/late_rank_program"}};
  RankVector<pid_t> pids_;
};

TEST_F(Top, NamesTheRankForWhichTheOthersWait) {
  const auto ranks = look("3");
  ASSERT_EQ(ranks.size(), kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto& row = ranks[static_cast<std::size_t>(rank)];
    EXPECT_EQ(row["rank"], rank);
    EXPECT_EQ(row["pid"], pids_[rank]);
    EXPECT_EQ(row["late"], rank == 1) << row;
    // There is one every 50 ms on a machine that has nothing else to do.
    EXPECT_GT(row["collectives_per_second"], 1) << row;
    EXPECT_LT(row["collectives_per_second"], 21) << row;
  }
  EXPECT_GT(ranks[0]["waiting"], 0.5) << ranks;
  EXPECT_LT(ranks[1]["waiting"], 0.5) << ranks;
  EXPECT_GT(ranks[2]["waiting"], 0.5) << ranks;
}

TEST_F(Top, SaysWhoIsStoppedAndWhatTheOthersDo) {
  ASSERT_EQ(::kill(pids_[1], SIGSTOP), 0);
  const auto ended = testing::run({"top", "--once", "--interval", "5"});
  EXPECT_EQ(ended.status, 0) << ended.errors;
  expect_contains(ended.output, "job ");
  expect_contains(ended.output, " of 3 ranks, 3 here");
  expect_contains(ended.output, "is in all_reduce(sum f32 [1000]) #");
  expect_contains(ended.output, ", waiting for rank 1\n");
  expect_contains(ended.output, "<- the others wait for it; stopped or without a core for ");
  expect_contains(ended.output, "in its own code: loading data\n");
}

}  // namespace
}  // namespace stretto
