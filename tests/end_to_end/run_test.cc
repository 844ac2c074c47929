// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// `stretto run` from outside: the built program, with shell scripts as ranks.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "stretto/base/clock.h"
#include "stretto/bootstrap/socket.h"
#include "tests/end_to_end/tool.h"

namespace stretto {
namespace {

using namespace testing;  // NOLINT: what tool.h gives to tests.

const std::string kStoreRank = STRETTO_BIN_DIR "/store_rank_program";

Arguments shell(int ranks, const std::string& script, const Arguments& options = {}) {
  return Arguments{"run", "-n", std::to_string(ranks)} + options +
         Arguments{"--", "sh", "-c", script};
}

std::multiset<std::string> lines(const std::string& text) {
  std::multiset<std::string> result;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) result.insert(line);
  return result;
}

TEST(Run, PrefixesEveryLineByItsRank) {
  const Ended ended = run(shell(3, "echo out $STRETTO_RANK; echo error >&2; printf 'last words'"));
  EXPECT_EQ(ended.status, 0);
  EXPECT_EQ(lines(ended.output),
            (std::multiset<std::string>{"[0] out 0", "[1] out 1", "[2] out 2", "[0] last words",
                                        "[1] last words", "[2] last words"}));
  EXPECT_EQ(lines(ended.errors),
            (std::multiset<std::string>{"[0] error", "[1] error", "[2] error"}));
}

TEST(Run, LosesNoOutput) {
  const Ended ended = run(shell(2, "seq 1 20000", {"--no-prefix"}));
  EXPECT_EQ(std::count(ended.output.begin(), ended.output.end(), '\n'), 40000);
  EXPECT_EQ(lines(ended.output).count("19999"), 2u);
}

TEST(Run, ReturnsTheExitCodeOfTheFirstFailureAndEndsTheOthers) {
  const TimePoint start = Clock::now();
  const Ended ended =
      run(shell(3, "test $STRETTO_RANK = 1 && exit 3; sleep 60", {"--settle", "0.05"}));
  EXPECT_EQ(ended.status, 3);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "stretto run: rank 1 failed first: exit code 3",
                      ended.errors);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "rank 2: SIGTERM (sent by this launcher)",
                      ended.errors);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(4));
}

TEST(Run, LetsTheOthersSpeakBeforeItEndsThem) {
  const Ended ended =
      run(shell(2, "test $STRETTO_RANK = 1 && exit 3; sleep 0.1; echo peer lost >&2; exit 1"));
  EXPECT_EQ(ended.status, 3);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "[0] peer lost\n", ended.errors);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "rank 0: exit code 1, 0.", ended.errors);
}

TEST(Run, SaysWhatAKilledRankWasDoing) {
  const Ended ended = run({"run", "-n", "2", "--settle", "0", "--", kStoreRank, "die"});
  EXPECT_EQ(ended.status, 128 + SIGKILL);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      "rank 1 failed first: SIGKILL (killed from outside, possibly by the "
                      "out-of-memory killer)",
                      ended.errors);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "its last operation was all_reduce(sum f32 [8]) #3",
                      ended.errors);
}

TEST(Run, KillsWhoDoesNotEndInTime) {
  const Ended ended = run(shell(2, "trap '' TERM; test $STRETTO_RANK = 1 && exit 3; sleep 60",
                                {"--settle", "0.05", "--grace", "0.05"}));
  EXPECT_EQ(ended.status, 3);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "rank 0: SIGKILL", ended.errors);
}

TEST(Run, PassesSignalsOn) {
  for (const auto& [signal, name] : std::map<int, std::string>{
           {SIGINT, "INT"}, {SIGTERM, "TERM"}, {SIGHUP, "HUP"}, {SIGUSR1, "USR1"}}) {
    Tool tool(shell(2, fmt::format("trap 'echo got {0}; exit 0' {0}; echo ready $STRETTO_RANK; "
                                   "while :; do sleep 0.01; done",
                                   name)));
    ASSERT_TRUE(tool.output().wait_for("ready 0"));
    ASSERT_TRUE(tool.output().wait_for("ready 1"));
    ::kill(tool.pid(), signal);
    EXPECT_EQ(tool.status(), 0);
    EXPECT_EQ(lines(tool.output().finish()).count("[1] got " + name), 1u);
  }
}

TEST(Run, AnInterruptedJobReturnsLikeAnInterruptedProgram) {
  Tool tool({"run", "-n", "2", "--", "sh", "-c", "echo ready; exec sleep 60"});
  ASSERT_TRUE(tool.output().wait_for("[0] ready"));
  ASSERT_TRUE(tool.output().wait_for("[1] ready"));
  ::kill(tool.pid(), SIGINT);
  EXPECT_EQ(tool.status(), 128 + SIGINT);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "rank 1: SIGINT (sent by this launcher)",
                      tool.errors().finish());
}

TEST(Run, SaysWhyAProgramCannotStart) {
  const Ended missing = run({"run", "-n", "2", "--", "no-such-program"});
  EXPECT_EQ(missing.status, 127);
  EXPECT_EQ(missing.errors,
            "stretto run: cannot start \"no-such-program\": No such file or directory\n");
  const Ended forbidden = run({"run", "--", "/etc/passwd"});
  EXPECT_EQ(forbidden.status, 126);
}

TEST(Run, SaysWhatIsWrongWithACommandLine) {
  EXPECT_EQ(run({"run", "-n", "2"}).status, 2);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "put it behind \"--\"", run({"run"}).errors);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "goes behind \"--\"", run({"run", "./train"}).errors);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "nan is no time in seconds",
                      run({"run", "--settle", "nan", "--", "x"}).errors);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "--ranks", run({"run", "-n", "0", "--", "x"}).errors);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "--hosts , names no host",
                      run({"run", "--hosts", ",", "--", "x"}).errors);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "from 0 to 1",
                      run({"run", "--hosts", "a,b", "--host-index", "2", "--", "x"}).errors);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "stretto run --print-job-key",
                      run({"run", "--hosts", "a,b", "--host-index", "1", "--", "x"}).errors);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "STRETTO_JOB_KEY: a job key has 64",
                      run({"run", "--", "true"}, {{"STRETTO_JOB_KEY", "x"}}).errors);
  EXPECT_EQ(run({"run", "--help"}).status, 0);
  EXPECT_EQ(run({"unknown"}).status, 2);
}

TEST(Run, RanksOfTwoLaunchersMeetAlthoughThoseAtTheStoreEndFirst) {
  const Variables key{{"STRETTO_JOB_KEY", run({"run", "--print-job-key"}).output.substr(0, 64)}};
  // A port that was free a moment ago.
  const int port = [] {
    const auto listener = bootstrap::listen_tcp("127.0.0.1", 0).or_throw();
    return bootstrap::local_port(listener.get()).or_throw();
  }();
  const auto launcher = [&](int index) {
    return Arguments{"run",
                     "-n",
                     "2",
                     "--hosts",
                     "node0,node1",
                     "--host-index",
                     std::to_string(index),
                     "--rendezvous",
                     "127.0.0.1:" + std::to_string(port),
                     "--",
                     kStoreRank,
                     "late"};
  };
  Tool second(launcher(1), key);
  const Ended first = run(launcher(0), key);
  EXPECT_EQ(first.status, 0) << first.errors;
  EXPECT_EQ(second.status(), 0) << second.errors().finish();
  EXPECT_EQ(lines(first.output), (std::multiset<std::string>{"[0] met 4", "[1] met 4"}));
  EXPECT_EQ(lines(second.output().finish()),
            (std::multiset<std::string>{"[2] met 4", "[3] met 4"}));
}

TEST(Run, AStrangerOnThePortIsRefusedAndTheJobUnharmed) {
  const Ended ended = run(shell(
      2, "p=${STRETTO_RENDEZVOUS#*:}; test $STRETTO_RANK = 0 || exec " + kStoreRank +
             " meet; bash -c \"echo random bytes of all kinds >/dev/tcp/127.0.0.1/$p\"; exec " +
             kStoreRank + " meet"));
  EXPECT_EQ(ended.status, 0) << ended.errors;
  EXPECT_EQ(lines(ended.output), (std::multiset<std::string>{"[0] met 2", "[1] met 2"}));
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "refused a connection from 127.0.0.1:", ended.errors);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "not a stretto peer: the first bytes were 72 61 6e",
                      ended.errors);
}

TEST(Run, ReportsInJson) {
  const Ended ended =
      run(shell(2, "echo text; exit $STRETTO_RANK", {"--json", "--settle", "0.05"}));
  const std::size_t begin = ended.output.rfind("\n{");
  ASSERT_NE(begin, std::string::npos) << ended.output;
  const auto json = nlohmann::json::parse(ended.output.substr(begin));
  EXPECT_EQ(json["exit_status"], 1);
  EXPECT_EQ(json["first_failure"], 1);
  EXPECT_EQ(json["ranks"].size(), 2u);
}

TEST(Run, SurvivesThatNobodyReadsItsOutput) {
  Tool tool(
      {"run", "-n", "1", "--", "sh", "-c", STRETTO_TOOL " run -n 2 -- seq 1 50000 | head -n 1"});
  EXPECT_EQ(tool.status(), 0);
  EXPECT_EQ(lines(tool.output().finish()).size(), 1u);
}

TEST(Version, IsTheOneOfTheBuild) {
  const std::string text = read_file(STRETTO_SOURCE_DIR "/CMakeLists.txt");
  const std::string printed = run({"--version"}).output;
  const std::string version = printed.substr(8, printed.find(" (") - 8);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "project(stretto VERSION " + version + " ", text);
}

}  // namespace
}  // namespace stretto
