// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Jobs whose processes die, and are started again, while the others go on.

#include <gtest/gtest.h>
#include <signal.h>

#include <regex>

#include <fmt/format.h>

#include "tests/end_to_end/tool.h"
#include "tests/support/expect_contains.h"

namespace stretto::testing {
namespace {

const std::string kExample = std::string(STRETTO_BIN_DIR) + "/13_elastic";

Arguments example(int ranks, int restarts, int steps) {
  return {"run", "-n",     std::to_string(ranks), "--restarts", std::to_string(restarts),
          "--",  kExample, std::to_string(steps)};
}

// The weights that the processes print at the end, which are the same for all.
std::string result_of(const std::string& output) {
  const std::regex pattern("the first weights are [-0-9. ]+");
  std::string result;
  for (std::sregex_iterator at(output.begin(), output.end(), pattern), end; at != end; ++at) {
    if (result.empty()) result = at->str();
    EXPECT_EQ(at->str(), result);
  }
  return result;
}

// The process that is this rank of a generation, once it says so.
pid_t member(Tool& job, int generation, int rank, int size) {
  const std::string text = fmt::format("generation {}: rank {} of {} ", generation, rank, size);
  EXPECT_TRUE(job.output().wait_for(text)) << text << "in: " << job.output().so_far();
  std::smatch match;
  const std::string output = job.output().so_far();
  const std::regex pattern(text + "goes on at step [0-9]+ \\(pid ([0-9]+)\\)");
  return std::regex_search(output, match, pattern) ? std::stoi(match[1]) : 0;
}

TEST(Elastic, EveryRankMayDieAndComeBack) {
  const Ended alone = run(example(1, 0, 200));
  const std::string expected = result_of(alone.output);
  ASSERT_FALSE(expected.empty()) << alone.errors;
  // The first dies, which had the state for newcomers; then one that is new itself.
  Tool job(example(3, 2, 5000));
  const pid_t first = member(job, 1, 0, 3);
  ASSERT_GT(first, 0);
  ::kill(first, SIGKILL);
  (void)member(job, 2, 0, 2);
  const pid_t newcomer = member(job, 3, 2, 3);
  ASSERT_GT(newcomer, 0);
  ::kill(newcomer, SIGKILL);
  (void)member(job, 5, 2, 3);
  const Ended ended = end_of(job);
  EXPECT_EQ(ended.status, 0) << ended.errors;
  EXPECT_EQ(result_of(ended.output), expected);
  EXPECT_EQ(occurrences(ended.output, "after 5000 steps"), 3U);
  expect_contains(ended.errors, "killed by SIGKILL");  // The others knew how it had ended.
}

TEST(Elastic, GoesOnWithoutRestarts) {
  Tool job({"run", "-n", "3", "--settle", "60", "--", kExample, "2000"});
  const pid_t last = member(job, 1, 2, 3);
  ASSERT_GT(last, 0);
  ::kill(last, SIGKILL);
  const Ended ended = end_of(job);
  EXPECT_EQ(ended.status, 128 + SIGKILL);
  EXPECT_EQ(occurrences(ended.output, "after 2000 steps"), 2U) << ended.errors;
}

TEST(Elastic, AProcessThatNoLauncherHasStartedGetsIn) {
  Tool job(shell(2, "echo place $STRETTO_RENDEZVOUS $STRETTO_JOB_KEY; exec " + kExample + " 3000"));
  (void)member(job, 1, 1, 2);
  std::smatch place;
  const std::string output = job.output().so_far();
  ASSERT_TRUE(std::regex_search(output, place, std::regex("place ([0-9.:]+) ([0-9a-f]+)")));
  Process newcomer({kExample, "3000"},
                   {{"STRETTO_RENDEZVOUS", place[1]}, {"STRETTO_JOB_KEY", place[2]}});
  const Ended entered = end_of(newcomer);
  expect_contains(entered.output, "generation 2: rank 2 of 3");
  const Ended ended = end_of(job);
  EXPECT_EQ(ended.status, 0) << ended.errors;
  EXPECT_EQ(result_of(entered.output + ended.output), result_of(ended.output));
  EXPECT_EQ(entered.status, 0) << entered.errors;
}

}  // namespace
}  // namespace stretto::testing
