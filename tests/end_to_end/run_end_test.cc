// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// How a job of `stretto run` ends, and that nothing of it is left afterwards.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "stretto/base/clock.h"
#include "stretto/bootstrap/socket.h"
#include "tests/end_to_end/tool.h"
#include "tests/support/expect_contains.h"
#include "tests/support/soon.h"

namespace stretto {
namespace {

using std::chrono::milliseconds;
using testing::Arguments;
using testing::Ended;
using testing::shell;
using testing::Tool;

// The processes that have inherited `variable`. Zombies are left out: they have no environment.
std::vector<pid_t> processes_with(const std::string& variable) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    // If the process ends meanwhile, reading fails.
    const std::string text = read_file(entry.path() / "environ");
    if (text.find(variable) != std::string::npos) found.push_back(pid);
  }
  return found;
}

bool all_end_soon(const std::string& variable) {
  return comes_true([&] { return processes_with(variable).empty(); });
}

// Children of a rank: in its process group, in a session of their own, and without a parent.
constexpr const char* kFamily =
    "sleep 300 & setsid sleep 300 & (setsid sh -c 'sleep 300 & setsid sleep 300' &); ";

TEST(RunEnd, AKilledLauncherLeavesNothingAtWhicheverMoment) {
  const std::string script = std::string(kFamily) + "echo ready; wait";
  std::mt19937 random(7);
  // Kills come at most a little later than the ranks were ready the last time.
  Duration longest{};
  for (int kill = 0; kill < 60; ++kill) {
    const std::string value = fmt::format("{}-{}", ::getpid(), kill);
    const TimePoint begin = Clock::now();
    Tool tool(shell(2, script), {{"STRETTO_TEST_MARK", value}});
    if (kill % 10 == 0) {
      ASSERT_TRUE(tool.output().wait_for("ready"));
      longest = (Clock::now() - begin) * 5 / 4;
    } else {
      std::this_thread::sleep_for(longest * (random() % 1000) / 1000);
    }
    const double after_ms = 1e3 * seconds(Clock::now() - begin);
    ::kill(tool.pid(), SIGKILL);
    EXPECT_EQ(tool.status(), 128 + SIGKILL);
    EXPECT_TRUE(all_end_soon("STRETTO_TEST_MARK=" + value)) << "killed after " << after_ms << " ms";
  }
}

TEST(RunEnd, NothingOutlivesAJobHoweverItHidden) {
  for (const char* status : {"0", "1"}) {
    const std::string value = fmt::format("{}-end-{}", ::getpid(), status);
    const Ended ended =
        testing::run(shell(2, std::string(kFamily) + "exit " + status, {"--settle", "0"}),
                     {{"STRETTO_TEST_MARK", value}});
    EXPECT_EQ(ended.status, std::atoi(status));
    EXPECT_TRUE(processes_with("STRETTO_TEST_MARK=" + value).empty());
  }
}

TEST(RunEnd, WhatARankLeavesBehindIsReapedWhileTheJobGoesOn) {
  const std::string script =
      "(sleep 0.05 &); left=1; for i in $(seq 100); do [ $left = 0 ] && break; sleep 0.05; "
      "left=$(ps -o comm= --ppid $PPID | grep -c sleep); done; echo $left";
  const Ended ended = testing::run(shell(1, script));
  EXPECT_EQ(ended.output, "[0] 0\n");
  EXPECT_EQ(ended.errors, "");  // Without ps there would be an error.
}

TEST(RunEnd, WhatARankLeavesBehindIsReapedAlthoughMoreEndsAllTheTime) {
  const std::string script =
      "for i in $(seq 60); do (sleep 0.05 &); sleep 0.1; "
      "left=$(ps -o stat= --ppid $PPID | grep -c Z); "
      "if [ $((i - left)) -gt 5 ]; then echo reaped; exit; fi; done; echo $left are left";
  const Ended ended = testing::run(shell(1, script));
  EXPECT_EQ(ended.output, "[0] reaped\n");
  EXPECT_EQ(ended.errors, "");
}

TEST(RunEnd, ALauncherWhoseGuardianIsKilledSaysSoAndEndsTheRanks) {
  Tool tool(shell(1, "sleep 300 & echo child=$! guard=$PPID; wait", {"--json"}));
  const auto child = static_cast<pid_t>(testing::number_behind(tool, "child="));
  ::kill(static_cast<pid_t>(testing::number_behind(tool, "guard=")), SIGKILL);
  EXPECT_EQ(tool.status(), 1);
  expect_contains(tool.errors().finish(), "the process that looks after the ranks");
  EXPECT_TRUE(testing::ends_soon(child));
  const std::string all = tool.output().finish();
  const auto json = nlohmann::json::parse(all.substr(all.rfind("\n{")));
  EXPECT_EQ(json["exit_status"], 1);
  EXPECT_GT(json["ranks"][0]["pid"], 0);
  EXPECT_TRUE(json["ranks"][0]["exit_code"].is_null());
}

class RunEndSignal : public ::testing::TestWithParam<int> {};

TEST_P(RunEndSignal, RanksThatIgnoreItAreKilledAfterTheGrace) {
  Tool tool(shell(2, "trap '' INT TERM HUP; echo ready; while :; do sleep 0.05; done",
                  {"--grace", "0.3", "--json"}));
  ASSERT_TRUE(tool.output().wait_for("[0] ready"));
  ASSERT_TRUE(tool.output().wait_for("[1] ready"));
  const TimePoint begin = Clock::now();
  ::kill(tool.pid(), GetParam());
  EXPECT_EQ(tool.status(), 128 + SIGKILL);
  EXPECT_GE(Clock::now() - begin, milliseconds(300));
  const std::string name = fmt::format("SIG{}", ::sigabbrev_np(GetParam()));
  const std::string errors = tool.errors().finish();
  expect_lacks(errors, "failed first");
  expect_lacks(errors, "out-of-memory");
  expect_contains(errors, "stretto run: the job was ended because this launcher was sent " + name);
  expect_contains(errors, "stretto run: rank 1: SIGKILL (sent by this launcher)\n");
  const std::string output = tool.output().finish();
  const auto json = nlohmann::json::parse(output.substr(output.rfind("\n{")));
  EXPECT_EQ(json["ended_by"], name);
  EXPECT_TRUE(json["first_failure"].is_null());
}

TEST_P(RunEndSignal, ASecondOneKillsAtOnce) {
  Tool tool(shell(2, "trap 'echo noted' INT TERM HUP; echo ready; while :; do sleep 0.01; done",
                  {"--grace", "600"}));
  ASSERT_TRUE(tool.output().wait_for("[0] ready"));
  ASSERT_TRUE(tool.output().wait_for("[1] ready"));
  ::kill(tool.pid(), GetParam());
  ASSERT_TRUE(tool.output().wait_for("[0] noted"));
  ASSERT_TRUE(tool.output().wait_for("[1] noted"));
  // A second signal that came sooner would be taken for the same request.
  std::this_thread::sleep_for(milliseconds(150));
  ::kill(tool.pid(), SIGTERM);
  EXPECT_EQ(tool.status(), 128 + SIGKILL);
}

INSTANTIATE_TEST_SUITE_P(, RunEndSignal, ::testing::Values(SIGINT, SIGTERM, SIGHUP),
                         [](const auto& tested) {
                           return std::string(::sigabbrev_np(tested.param));
                         });

// Rank 0 saves its state but does not end after the failure of rank 1 has ended the job.
TEST(RunEnd, TheFirstRequestLeavesRanksThatAreBeingEndedTheirGrace) {
  const TemporaryFolder folder;
  const std::string ready = folder / "ready";
  const std::string script = fmt::format(
      "if [ $STRETTO_RANK = 1 ]; then until [ -e {0} ]; do sleep 0.01; done; exit 3; fi; "
      "trap 'echo told; sleep 0.5; echo saved' TERM; touch {0}; while :; do sleep 0.01; done",
      ready);
  Tool tool(shell(2, script, {"--settle", "0", "--grace", "600"}));
  ASSERT_TRUE(tool.output().wait_for("[0] told"));
  ::kill(tool.pid(), SIGTERM);
  ASSERT_TRUE(tool.output().wait_for("[0] saved"));
  // A second signal that came sooner would be taken for the same request.
  std::this_thread::sleep_for(milliseconds(150));
  ::kill(tool.pid(), SIGTERM);
  EXPECT_EQ(tool.status(), 3);
  expect_contains(tool.errors().finish(), "rank 0: SIGKILL (sent by this launcher)");
}

TEST(RunEnd, ARequestToldTwiceAtOnceIsOneRequest) {
  Tool tool(shell(1,
                  "trap 'sleep 0.3; echo saved; exit 0' TERM; echo ready; "
                  "while :; do sleep 0.01; done"),
            {});
  ASSERT_TRUE(tool.output().wait_for("[0] ready"));
  // timeout(1) also sends the signal twice.
  ::kill(tool.pid(), SIGTERM);
  std::this_thread::sleep_for(milliseconds(5));
  ::kill(tool.pid(), SIGTERM);
  EXPECT_EQ(tool.status(), 0);
  expect_contains(tool.output().finish(), "[0] saved");
}

// A guardian that stands still reports no end, as if the system did not let the ranks die.
TEST(Unkillable, ARankThatDoesNotEndOnSigkillIsNamedAndNotWaitedFor) {
  Tool tool(shell(2, "echo guardian $PPID; exec sleep 60", {"--grace", "0"}));
  const auto guardian = static_cast<pid_t>(testing::number_behind(tool, 0, "guardian"));
  (void)testing::number_behind(tool, 1, "guardian");
  ::kill(guardian, SIGSTOP);
  ::kill(tool.pid(), SIGTERM);
  const Deadline deadline = Deadline::after(std::chrono::seconds(40));
  const bool has_ended = comes_true([&] { return !testing::runs(tool.pid()); }, deadline);
  ::kill(guardian, SIGCONT);
  ASSERT_TRUE(has_ended);
  EXPECT_EQ(tool.status(), 1);
  expect_contains(tool.errors().finish(),
                  "not ended on SIGKILL, as may happen in a driver that "
                  "hangs: rank 0, 1;");
  EXPECT_TRUE(testing::ends_soon(guardian));
}

// The guardian cannot reap an ended process before its tracer has been told.
TEST(Unkillable, WhatARankHasLeftAndDoesNotEndOnSigkillIsNotWaitedFor) {
  const TemporaryFolder folder;
  const std::string go = folder / "go";
  Tool tool(
      shell(1, fmt::format("sleep 60 & echo child $!; until [ -e {} ]; do sleep 0.01; done", go)));
  const auto child = static_cast<pid_t>(testing::number_behind(tool, 0, "child"));
  if (::ptrace(PTRACE_SEIZE, child, nullptr, nullptr) != 0) GTEST_SKIP() << "may not trace";
  write_file(go, "");
  const Deadline deadline = Deadline::after(std::chrono::seconds(40));
  const bool has_ended = comes_true([&] { return !testing::runs(tool.pid()); }, deadline);
  EXPECT_EQ(::waitpid(child, nullptr, __WALL), child);
  ASSERT_TRUE(has_ended);
  EXPECT_EQ(tool.status(), 0);
  expect_contains(tool.errors().finish(),
                  "something that they have started does not end on SIGKILL");
}

TEST(RunEnd, AfterTheTimeLimitTheLauncherOwnsUpToWhatItDid) {
  const Ended ended = testing::run(shell(1, "trap '' TERM; while :; do sleep 0.05; done",
                                         {"--timeout", "0.3", "--grace", "0.1"}));
  EXPECT_EQ(ended.status, 124);
  EXPECT_EQ(ended.errors,
            "stretto run: the job was ended because it took longer than 0.3 s\n"
            "stretto run: rank 0: SIGKILL (sent by this launcher)\n");
}

// Survivors that shrink and go on need a long --settle, but that must not let a job run for ever.
TEST(RunEnd, TheTimeLimitHoldsAlsoAfterAFailure) {
  const TimePoint begin = Clock::now();
  const Ended ended = testing::run(shell(2, "[ $STRETTO_RANK = 0 ] && exit 3; exec sleep 60",
                                         {"--settle", "50", "--timeout", "1", "--grace", "0.1"}));
  EXPECT_EQ(ended.status, 124);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
}

TEST(RunEnd, TheTimeLimitHoldsAlsoForRanksThatStartAfterIt) {
  const TimePoint begin = Clock::now();
  const Ended ended =
      testing::run({"run", "-n", "150", "--timeout", "0.05", "--grace", "0", "--", "sleep", "60"});
  EXPECT_EQ(ended.status, 124);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));
}

TEST(RunEnd, TheTimeLimitHoldsAlsoWhileTheNameOfThisHostIsUnknown) {
  const TimePoint begin = Clock::now();
  const Ended ended = testing::run({"run", "--hosts", "nosuch.invalid,other", "--host-index", "0",
                                    "--timeout", "1", "--json", "--", "true"},
                                   {{"STRETTO_JOB_KEY", std::string(64, 'a')}});
  EXPECT_EQ(ended.status, 124);
  expect_contains(ended.errors, "looking up \"nosuch.invalid\"");
  EXPECT_EQ(nlohmann::json::parse(ended.output)["time_limit_reached"], true);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
}

TEST(RunEnd, ASignalEndsTheLauncherAlsoWhileTheNameOfThisHostIsUnknown) {
  Tool tool({"run", "--hosts", "nosuch.invalid,other", "--host-index", "0", "--json", "--", "true"},
            {{"STRETTO_JOB_KEY", std::string(64, 'a')}});
  ASSERT_TRUE(tool.errors().wait_for("trying again until this host's name is known"));
  ::kill(tool.pid(), SIGTERM);
  EXPECT_EQ(tool.status(), 128 + SIGTERM);
  expect_contains(tool.errors().finish(), "ended by a signal before any rank had been started");
  EXPECT_EQ(nlohmann::json::parse(tool.output().finish())["ended_by"], "SIGTERM");
}

TEST(RunEnd, StrangersWithOpenConnectionsDoNotKeepTheLauncher) {
  Tool tool(shell(1, "echo port=${STRETTO_RENDEZVOUS#*:}; read line </dev/null; sleep 0.5"));
  ASSERT_TRUE(tool.output().wait_for("port="));
  const std::string output = tool.output().so_far();
  const int port = std::atoi(output.c_str() + output.find("port=") + 5);
  const auto stranger =
      bootstrap::connect_tcp("127.0.0.1", port, Deadline::after(std::chrono::seconds(5)));
  ASSERT_TRUE(stranger.ok());
  const TimePoint begin = Clock::now();
  EXPECT_EQ(tool.status(), 0);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(8));
}

TEST(RunLimits, WithoutPrefixesTheOutputIsWhatTheRankWrote) {
  const TemporaryFolder folder;
  const std::string file = folder / "bytes";
  // This is longer than the lines that are cut, has bytes of all kinds, and ends without a newline.
  const Ended ended = testing::run(shell(1,
                                         "head -c 300000 /dev/zero | tee " + file +
                                             "; head -c 100000 /dev/urandom | tee -a " + file +
                                             "; printf end | tee -a " + file + "; printf error >&2",
                                         {"--no-prefix"}));
  const std::string written = read_file(file);
  EXPECT_EQ(written.size(), 400003u);
  EXPECT_TRUE(ended.output == written);
  EXPECT_EQ(ended.errors, "error");
}

TEST(RunLimits, TheLineForProgramsIsALineOfItsOwn) {
  const Ended ended = testing::run({"run", "--no-prefix", "--json", "--", "printf", "end"});
  EXPECT_TRUE(ended.output.starts_with("end\n{")) << ended.output;
}

// Runs a launcher of two ranks as a user who may have `limit` processes and threads.
Ended run_with_processes(int limit, const std::string& mark) {
  Arguments before = {"prlimit", "--nproc=" + std::to_string(limit)};
  if (::geteuid() == 0) {
    // Root has no such limit: the user is a number that nobody else has, with root's access to
    // files.
    const std::string user = std::to_string(100000000 + ::getpid());
    before = before + Arguments{"setpriv", "--reuid=" + user, "--clear-groups",
                                "--inh-caps=+dac_override", "--ambient-caps=+dac_override"};
  }
  Tool tool({"run", "-n", "2", "--", "sleep", "0.2"}, {{"STRETTO_TEST_MARK", mark}}, before);
  return testing::end_of(tool);
}

TEST(RunLimits, WhatCannotBeStartedIsSaidAndLeavesNothing) {
  const std::string mark = fmt::format("{}-limits", ::getpid());
  // One of the processes is the launcher. If this user is not root, other processes count, too, so
  // that only the first case is of use.
  const int most = ::geteuid() == 0 ? 12 : 1;
  Ended ended{};
  for (int limit = 1; limit <= most; ++limit) {
    SCOPED_TRACE(limit);
    ended = run_with_processes(limit, mark);
    EXPECT_TRUE(all_end_soon("STRETTO_TEST_MARK=" + mark));
    if (ended.status == 0) break;
    EXPECT_EQ(ended.status, 1);
    EXPECT_TRUE(ended.errors.starts_with("stretto")) << ended.errors;
    expect_contains(ended.errors, "Resource temporarily unavailable");
    EXPECT_EQ(std::count(ended.errors.begin(), ended.errors.end(), '\n'), 1) << ended.errors;
  }
  EXPECT_TRUE(ended.status == 0 || most == 1) << ended.errors;
}

TEST(RunLimits, TheLimitOnFilesEndsNobodyWithoutAWord) {
  const auto run_with = [](const std::string& limit, const Arguments& arguments) {
    Tool tool(arguments, {}, {"prlimit", "--fsize=" + limit});
    return testing::end_of(tool);
  };
  // First less than the launcher's status board needs, then less than a rank needs, then less than
  // a rank's program writes.
  const Ended launcher = run_with("100", shell(1, "exit 0"));
  EXPECT_EQ(launcher.status, 0);
  EXPECT_EQ(launcher.errors,
            "stretto run warning: reserving 512 bytes of shared memory: File too large; raise "
            "`ulimit -f`: a report on a failure will not tell what the ranks were doing\n");
  const Ended library = run_with(
      "8192", {"run", "-n", "2", "--", STRETTO_BIN_DIR "/fault_rank_program", "registered"});
  EXPECT_EQ(library.status, 3) << library.errors;
  expect_contains(library.output, "File too large; raise `ulimit -f`");
  const TemporaryFolder folder;
  const Ended program = run_with("8192", {"run", "-n", "1", "--", "dd", "if=/dev/zero",
                                          "of=" + (folder / "zeros"), "bs=10000", "count=2"});
  EXPECT_EQ(program.status, 128 + SIGXFSZ);
  expect_contains(program.errors, "rank 0 failed first: SIGXFSZ (it wrote more than the limit");
}

}  // namespace
}  // namespace stretto
