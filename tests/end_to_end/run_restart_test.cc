// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// `stretto run --restarts`: shell scripts as ranks that fail and are started again.

#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/end_to_end/tool.h"
#include "tests/support/expect_contains.h"
#include "tests/support/free_port.h"

namespace stretto {
namespace {

using testing::Arguments;
using testing::Ended;
using testing::occurrences;
using testing::shell;
using testing::Tool;

// The rest runs on rank 1 until it has been started again.
const std::string kFirstStart = "if [ $STRETTO_RANK$STRETTO_RESTART_COUNT = 1 ]; then ";

// Rank 0 waits until the status board says how rank 1 has ended, and then until that text is gone,
// of which it tells rank 1. The second number in a slot is the length of its text in bytes.
std::string watch_obituary(const TemporaryFolder& folder) {
  return "bytes() { od -An -tu4 -j$((256 * (STRETTO_LOCAL_SIZE + STRETTO_SIZE - 2) + 4)) -N4 "
         "/proc/self/fd/$STRETTO_STATUS_FD; }; if [ $STRETTO_RANK = 0 ]; then "
         "until [ $(bytes) -gt 0 ]; do sleep 0.01; done; "
         "until [ $(bytes) -eq 0 ]; do sleep 0.01; done; touch " +
         (folder / "told") + "; else until [ -e " + (folder / "told") +
         " ]; do sleep 0.01; done; fi";
}

TEST(RunRestart, AFailedRankIsStartedAgainAndWhatItHasLeftIsGone) {
  const TemporaryFolder folder;
  const std::string file = folder / "child";
  const std::string script =
      kFirstStart +
      fmt::format(
          "sleep 300 & echo $! >{0}; seq 1 5000; printf 'last words'; kill -9 $$; fi; "
          "if [ $STRETTO_RANK = 1 ]; then kill -0 $(cat {0}) || echo gone; fi; "
          "echo restart $STRETTO_RESTART_COUNT of $STRETTO_RANK; ",
          file) +
      watch_obituary(folder);
  const Ended ended =
      testing::run(shell(2, script, {"--restarts", "3", "--timeout", "20", "--json"}),
                   {{"STRETTO_RESTART_COUNT", "of the launcher"}});
  EXPECT_EQ(ended.status, 0) << ended.errors;
  EXPECT_EQ(occurrences(ended.output, "[0] restart of 0\n"), 1u) << "ended well, hence once";
  for (const char* line : {"[1] 5000\n", "[1] last words\n", "[1] gone\n", "[1] restart 1 of 1\n"})
    expect_contains(ended.output, line);
  expect_contains(ended.errors,
                  "stretto run: rank 1 failed: SIGKILL (killed from outside, possibly by the "
                  "out-of-memory killer); it is started again (restart 1 of 3)\n");
  expect_lacks(ended.errors, "failed first");
  const auto json = nlohmann::json::parse(ended.output.substr(ended.output.find('{')));
  EXPECT_FALSE(json["ranks"][0].contains("restarts"));
  EXPECT_EQ(json["ranks"][1]["restarts"], 1);
  EXPECT_EQ(json["ranks"][1]["exit_code"], 0);
}

TEST(RunRestart, ARankIsStartedAgainAlthoughNobodyReadsThatItIs) {
  const TemporaryFolder folder;
  const std::string again = folder / "again";
  testing::UnreadPipe errors;
  Tool tool(
      shell(1, "test -n \"$STRETTO_RESTART_COUNT\" || exit 3; touch " + again, {"--restarts", "1"}),
      {}, errors.before({STDERR_FILENO}));
  EXPECT_TRUE(comes_true([&] { return std::filesystem::exists(again); }));
  testing::Collector said = errors.read();
  EXPECT_EQ(tool.status(), 0);
  expect_contains(
      said.finish(),
      "stretto run: rank 0 failed: exit code 3; it is started again (restart 1 of 1)\n");
}

TEST(RunRestart, WithoutRestartsLeftAFailureEndsTheJob) {
  const Ended ended =
      testing::run(shell(2, "echo start; test $STRETTO_RANK = 1 && exit 3; exec sleep 60",
                         {"--restarts", "1", "--settle", "0.05"}));
  EXPECT_EQ(ended.status, 3);
  EXPECT_EQ(occurrences(ended.output, "[1] start"), 2u);
  expect_contains(ended.errors, "rank 1 failed first: exit code 3");
}

TEST(RunRestart, RanksShareTheRestarts) {
  const Ended ended = testing::run(shell(2, "exit 3", {"--restarts", "1", "--settle", "600"}));
  EXPECT_EQ(ended.status, 3);
  EXPECT_EQ(occurrences(ended.errors, "it is started again"), 1u) << ended.errors;
}

TEST(RunRestart, WhatIsAnnouncedIsDoneAlthoughAnotherRankFailsMeanwhile) {
  const std::string script = kFirstStart +
                             "exit 5; fi; echo restart $STRETTO_RESTART_COUNT; "
                             "if [ $STRETTO_RANK = 2 ]; then sleep 0.2; exit 6; fi; sleep 1.5";
  const Ended ended = testing::run(shell(3, script, {"--restarts", "1", "--settle", "20"}));
  EXPECT_EQ(ended.status, 6);
  expect_contains(ended.output, "[1] restart 1\n");
  expect_contains(ended.errors, "rank 2 failed first: exit code 6");
}

// The other ranks go on, as after any failure.
TEST(RunRestart, AProgramThatIsGoneIsAFailureOfItsRank) {
  const TemporaryFolder folder;
  const std::string program = folder / "program";
  std::ofstream(program) << "#!/bin/sh\n"
                            "if [ $STRETTO_RANK = 1 ]; then\n"
                            "  until [ -e $0.read ]; do sleep 0.01; done; rm $0; exit 3\n"
                            "fi\n"
                            "touch $0.read; sleep 1.5; echo survived\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  const Ended ended =
      testing::run({"run", "-n", "2", "--restarts", "1", "--settle", "20", "--", program});
  EXPECT_EQ(ended.status, 127) << ended.errors;
  expect_contains(ended.output, "[0] survived");
  expect_contains(ended.errors, "No such file or directory");
}

TEST(RunRestart, ASignalInThePauseEndsTheJobWithoutARestart) {
  Tool tool(
      shell(2, "echo start; test $STRETTO_RANK = 1 && exit 3; exec sleep 60", {"--restarts", "3"}));
  ASSERT_TRUE(tool.output().wait_for("[0] start"));
  ASSERT_TRUE(tool.errors().wait_for("it is started again"));
  ::kill(tool.pid(), SIGTERM);
  const Ended ended = testing::end_of(tool);
  EXPECT_EQ(ended.status, 3);
  EXPECT_EQ(occurrences(ended.output, "[1] start"), 1u);
  expect_contains(ended.errors, "the job was ended because this launcher was sent SIGTERM");
}

// No rank runs at that time.
TEST(RunRestart, TheTimeLimitInThePauseEndsTheJobWithoutARestart) {
  const Ended ended =
      testing::run(shell(1, "echo start; exit 3", {"--restarts", "3", "--timeout", "0.7"}));
  EXPECT_EQ(ended.status, 124);
  EXPECT_EQ(occurrences(ended.output, "start"), 1u);
  expect_contains(ended.errors, "it is started again (restart 1 of 3)");
}

// The guardian stands still before it is told to start the rank.
TEST(RunRestart, ASignalAfterThePauseReachesARankThatIsJustBeingStarted) {
  const TemporaryFolder folder;
  const std::string script = fmt::format(
      "if [ $STRETTO_RANK = 0 ]; then echo ready $$; touch {0}; "
      "else echo guardian $PPID; until [ -e {0} ]; do sleep 0.01; done; fi; ",
      folder / "ready");
  Tool tool(
      shell(2, script + kFirstStart + "exit 3; fi; " + watch_obituary(folder) + "; exec sleep 60",
            {"--restarts", "1"}));
  const auto guardian = static_cast<pid_t>(testing::number_behind(tool, 1, "guardian"));
  const auto other = static_cast<pid_t>(testing::number_behind(tool, 0, "ready"));
  ASSERT_TRUE(tool.errors().wait_for("it is started again"));
  ::kill(guardian, SIGSTOP);
  // The launcher clears the status board and tells the guardian before it takes another signal.
  ASSERT_TRUE(comes_true([&] { return std::filesystem::exists(folder / "told"); }));
  ::kill(tool.pid(), SIGTERM);
  EXPECT_TRUE(testing::ends_soon(other));
  ::kill(guardian, SIGCONT);
  EXPECT_EQ(tool.status(), 128 + SIGTERM);
  expect_contains(tool.errors().finish(), "rank 1: SIGTERM (sent by this launcher)\n");
}

// A stand-in for ssh runs the command on this host.
Arguments on_two_hosts(const TemporaryFolder& folder, const std::string& script,
                       const std::string& hosts = "node0,node1") {
  const std::string remote_shell = folder / "shell";
  write_file(remote_shell, "#!/bin/sh\nexec sh -c \"$2\"\n");
  std::filesystem::permissions(remote_shell, std::filesystem::perms::owner_all);
  return {"run",        "--hosts", hosts,          "--ssh",
          remote_shell, "--json",  "--rendezvous", fmt::format("127.0.0.1:{}", free_port()),
          "--restarts", "2",       "--settle",     "0.05",
          "--timeout",  "20",      "--",           "sh",
          "-c",         script};
}

TEST(RunRestart, ARankOfAnotherHostIsStartedAgainThere) {
  const TemporaryFolder folder;
  const Ended ended = testing::run(
      on_two_hosts(folder, kFirstStart + "kill -9 $$; fi; echo start $STRETTO_RESTART_COUNT; " +
                               watch_obituary(folder)));
  EXPECT_EQ(ended.status, 0) << ended.errors;
  expect_contains(ended.output, "[1] start 1\n");
  expect_contains(ended.errors, "stretto run: rank 1 on node1 failed: SIGKILL");
  const auto json = nlohmann::json::parse(ended.output.substr(ended.output.find('{')));
  EXPECT_EQ(json["ranks"][1]["restarts"], 1);
}

// Nobody reads the standard error of rank 0 on node0, nor the output of rank 1 on node1. Then rank
// 2 ends, and after it rank 3 fails, both on node1.
TEST(RunRestart, AFailureOnAnotherHostIsHeardOfAlthoughNobodyReadsTheOutput) {
  const TemporaryFolder folder;
  write_file(folder / "hosts", "node0\nnode1 slots=3\n");
  const std::string script = "cd " + folder.path() +
                             "; wait_for() { until [ -e $1 ]; do sleep 0.01; done; }; "
                             "case $STRETTO_RANK$STRETTO_RESTART_COUNT in "
                             "0) echo words >&2; touch written; wait_for again;; "
                             "1) seq 100000;; "
                             "2) wait_for written; sleep 0.2;; "
                             "3) wait_for written; sleep 0.5; exit 3;; "
                             "31) touch again;; esac";
  testing::UnreadPipe unread;
  Tool tool(on_two_hosts(folder, script, folder / "hosts"), {},
            unread.before({STDOUT_FILENO, STDERR_FILENO}));
  EXPECT_TRUE(comes_true([&] { return std::filesystem::exists(folder / "again"); }));
  testing::Collector said = unread.read();
  EXPECT_EQ(tool.status(), 0);
  for (const char* line :
       {"[0] words\n", "[1] 100000\n",
        "stretto run: rank 3 on node1 failed: exit code 3; it is started again"}) {
    expect_contains(said.finish(), line);
  }
}

TEST(RunRestart, AHostThatIsLostInThePauseIsNotWaitedFor) {
  const TemporaryFolder folder;
  Tool tool(on_two_hosts(folder,
                         "echo agent $(ps -o ppid= -p $PPID); test $STRETTO_RANK = 1 && exit 3; "
                         "exec sleep 60"));
  const auto agent = static_cast<pid_t>(testing::number_behind(tool, 1, "agent"));
  ASSERT_TRUE(tool.errors().wait_for("it is started again"));
  ::kill(agent, SIGKILL);
  const Ended ended = testing::end_of(tool);
  EXPECT_EQ(ended.status, 255);
  expect_contains(ended.errors, "rank 1 on node1 failed first: lost with its host");
}

// Rank 0 is about to be started again while its host's guardian stands still.
TEST(RunRestart, ARestartThatHangsOnOneHostDoesNotKeepTheOthersFromTheirs) {
  const TemporaryFolder folder;
  const std::string known = folder / "known";
  const std::string go = folder / "go";
  Tool tool(on_two_hosts(
      folder, fmt::format("echo guardian $PPID; test -n \"$STRETTO_RESTART_COUNT\" && exit; "
                          "file={}; test $STRETTO_RANK = 0 && file={}; "
                          "until [ -e $file ]; do sleep 0.01; done; exit 3",
                          go, known)));
  const auto guardian = static_cast<pid_t>(testing::number_behind(tool, 0, "guardian"));
  (void)testing::number_behind(tool, 1, "guardian");
  write_file(known, "");
  ASSERT_TRUE(tool.errors().wait_for("rank 0 on node0 failed"));
  ::kill(guardian, SIGSTOP);
  write_file(go, "");
  const auto starts = [&] { return occurrences(tool.output().so_far(), "[1] guardian "); };
  EXPECT_TRUE(comes_true([&] { return starts() == 2; }));
  EXPECT_EQ(occurrences(tool.output().so_far(), "[0] guardian "), 1U);
  ::kill(guardian, SIGCONT);
  const Ended ended = testing::end_of(tool);
  EXPECT_EQ(ended.status, 0) << ended.errors;
  EXPECT_EQ(occurrences(ended.output, "[0] guardian "), 2U);
}

TEST(RunRestart, MpirunsRanksAreNotStartedAgain) {
  const Ended ended = testing::run({"run", "--transport", "mpi", "--restarts", "1", "--", "true"});
  EXPECT_EQ(ended.status, 2);
  expect_contains(ended.errors, "--restarts is not for --transport mpi");
}

}  // namespace
}  // namespace stretto
