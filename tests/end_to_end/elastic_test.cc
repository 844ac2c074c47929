// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Jobs whose processes die, and are started again, while the others go on.

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <regex>

#include <fmt/format.h>

#include "tests/end_to_end/tool.h"
#include "tests/support/expect_contains.h"

namespace stretto::testing {
namespace {

const std::string kExample = std::string(STRETTO_BIN_DIR) + "/13_elastic";
const std::string kSteps = "5000";  // About six seconds of steps.

// What all processes print at the end: weights that depend, to the last bit, on the number of
// steps.
std::string result_of(const std::string& output) {
  const std::regex pattern("after [0-9]+ steps the first weights are [-0-9.e ]+");
  std::string result;
  for (std::sregex_iterator at(output.begin(), output.end(), pattern), end; at != end; ++at) {
    if (result.empty()) result = at->str();
    EXPECT_EQ(at->str(), result);
  }
  return result;
}

// A process that has just become rank `rank` of `size`.
struct Start {
  int step = -1;
  pid_t pid = 0;
};

// The last start of that kind, once there are more than `before`.
Start start_of(Tool& job, int rank, int size, std::size_t before = 0) {
  const std::regex pattern(
      fmt::format("rank {} of {} goes on at step ([0-9]+) \\(pid ([0-9]+)\\)", rank, size));
  std::string output;
  std::vector<Start> starts;
  const bool has_come = comes_true([&] {
    output = job.output().so_far();
    starts.clear();
    for (std::sregex_iterator at(output.begin(), output.end(), pattern), end; at != end; ++at) {
      starts.push_back({std::stoi((*at)[1]), std::stoi((*at)[2])});
    }
    return starts.size() > before;
  });
  EXPECT_TRUE(has_come) << "rank " << rank << " of " << size << " in: " << output;
  return has_come ? starts.back() : Start();
}

// The variables with which a process joins the job, from a rank's line "place HOST:PORT KEY".
Variables place_in(const std::string& output) {
  std::smatch place;
  EXPECT_TRUE(std::regex_search(output, place, std::regex("place ([0-9.:]+) ([0-9a-f]+)")));
  return {{"STRETTO_RENDEZVOUS", place[1]}, {"STRETTO_JOB_KEY", place[2]}};
}

TEST(Elastic, EveryRankMayDieAndComeBack) {
  Process alone({kExample, kSteps}, {});
  Tool job({"run", "-n", "3", "--restarts", "2", "--", kExample, kSteps});
  // First the rank dies that had the state for newcomers; then one that is new itself.
  const Start first = start_of(job, 0, 3);
  ASSERT_GT(first.pid, 0);
  (void)start_of(job, 2, 3);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // Lets some steps pass.
  ::kill(first.pid, SIGKILL);
  const Start newcomer = start_of(job, 2, 3, 1);
  ASSERT_GT(newcomer.pid, 0);
  EXPECT_GT(newcomer.step, 0) << "rank 0 has given it an empty state";
  ::kill(newcomer.pid, SIGKILL);
  EXPECT_GE(start_of(job, 2, 3, 2).step, newcomer.step);
  const Ended ended = end_of(job);
  EXPECT_EQ(ended.status, 0) << ended.errors;
  EXPECT_EQ(occurrences(ended.output, "after " + kSteps + " steps"), 3U);
  EXPECT_EQ(result_of(ended.output), result_of(end_of(alone).output));
  EXPECT_TRUE(std::regex_search(ended.errors, std::regex("meeting again: .*killed by SIGKILL")))
      << ended.errors;  // The others have heard how it ended.
}

TEST(Elastic, GoesOnWithoutRestarts) {
  Tool job({"run", "-n", "3", "--settle", "60", "--", kExample, "2000"});
  const Start last = start_of(job, 2, 3);
  ASSERT_GT(last.pid, 0);
  ::kill(last.pid, SIGKILL);
  const Ended ended = end_of(job);
  EXPECT_EQ(ended.status, 128 + SIGKILL);
  EXPECT_EQ(occurrences(ended.output, "after 2000 steps"), 2U) << ended.errors;
}

// Otherwise it would do all steps once more, alone.
TEST(Elastic, WhoIsStartedAgainAfterTheEndDoesNothing) {
  const std::string dies_at_its_end =
      "[ $STRETTO_RANK != 1 ] || [ -n \"$STRETTO_RESTART_COUNT\" ] || kill -9 $$";
  const Ended ended = run(shell(2, kExample + " 300; " + dies_at_its_end, {"--restarts", "1"}));
  EXPECT_EQ(ended.status, 0) << ended.errors;
  expect_contains(ended.errors, "it is started again (restart 1 of 1)");
  EXPECT_EQ(occurrences(ended.output, "goes on at step"), 2U) << ended.output;
  EXPECT_EQ(occurrences(ended.output, "after 0 steps"), 1U) << ended.output;
}

TEST(Elastic, TheStoreOutlivesTheRanksOfItsLauncher) {
  Tool job(shell(1, "echo place $STRETTO_RENDEZVOUS $STRETTO_JOB_KEY; exec " + kExample + " 3000",
                 {"--settle", "0"}));
  const Start first = start_of(job, 0, 1);
  ASSERT_GT(first.pid, 0);
  Process newcomer({kExample, "3000"}, place_in(job.output().so_far()));
  ASSERT_GT(start_of(job, 0, 2).pid, 0);
  ::kill(first.pid, SIGKILL);
  const Ended entered = end_of(newcomer);
  EXPECT_EQ(entered.status, 0) << entered.errors;
  expect_contains(entered.output, "rank 0 of 1 goes on at step");
  expect_contains(entered.output, "after 3000 steps");
  EXPECT_EQ(job.status(), 128 + SIGKILL);
}

// Ends a job whose launcher has lost its own rank, while a process that it has not started goes on.
Ended end_of_store(const Arguments& options, int signal) {
  Tool job(shell(1, "echo place $STRETTO_RENDEZVOUS $STRETTO_JOB_KEY; exec " + kExample + " 3000",
                 Arguments{"--settle", "0", "--json"} + options));
  const Start first = start_of(job, 0, 1);
  const Process newcomer({kExample, "1000000"}, place_in(job.output().so_far()));
  if (std::min(first.pid, start_of(job, 0, 2).pid) > 0) ::kill(first.pid, SIGKILL);
  EXPECT_TRUE(job.errors().wait_for("rank 0 failed first"));
  if (signal != 0) ::kill(job.pid(), signal);
  return end_of(job);
}

TEST(Elastic, TheTimeLimitEndsTheStoreOfProcessesThatGoOn) {
  const Ended ended = end_of_store({"--timeout", "10"}, 0);
  EXPECT_EQ(ended.status, 124);
  expect_contains(ended.errors, "the time limit ends the wait for the other processes");
  expect_contains(ended.output, "\"time_limit_reached\":true");
}

TEST(Elastic, ASignalEndsTheStoreOfProcessesThatGoOn) {
  const Ended ended = end_of_store({}, SIGTERM);
  EXPECT_EQ(ended.status, 128 + SIGKILL);
  expect_contains(ended.errors, "SIGTERM ends the wait for the other processes");
  expect_contains(ended.output, "\"ended_by\":\"SIGTERM\"");
}

}  // namespace
}  // namespace stretto::testing
