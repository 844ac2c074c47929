// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// `stretto run --hosts` over OpenSSH, with a server of this test's own on each of two hosts:
// network namespaces, or, without the rights to make them, two loopback addresses.

#include <filesystem>
#include <fstream>
#include <regex>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "stretto/base/clock.h"
#include "tests/end_to_end/hosts.h"
#include "tests/support/expect_contains.h"
#include "tests/support/free_port.h"

namespace stretto {
namespace {

using testing::Arguments;
using testing::Ended;
using testing::Process;
using testing::Tool;
using testing::Variables;

constexpr const char* kServer = "/usr/sbin/sshd";

class Ssh : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::access(kServer, X_OK) != 0) {
      GTEST_SKIP() << kServer << " is not there (Debian's openssh-server has it)";
    }
    // Debian's service makes this folder before it starts the server as root.
    if (::geteuid() == 0) std::filesystem::create_directories("/run/sshd");
    for (const char* key : {"host_key", "key"}) {
      Process keygen({"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder_ / key}, {});
      ASSERT_EQ(keygen.status(), 0) << keygen.errors().finish();
    }
    std::filesystem::copy(folder_ / "key.pub", folder_ / "authorized_keys");
    std::ofstream(folder_ / "config")
        << "HostKey " << (folder_ / "host_key") << "\nAuthorizedKeysFile "
        << (folder_ / "authorized_keys")
        << "\nStrictModes no\nPermitRootLogin yes\nUsePAM no\nPidFile none\n";
    for (const int host : {0, 1}) serve(host);
  }

  void serve(int host) {
    servers_.push_back(std::make_unique<Process>(
        on(host) + Arguments{kServer, "-D", "-e", "-f", folder_ / "config", "-o",
                             fmt::format("ListenAddress={}:{}", address(host), port_)},
        Variables{}));
    ASSERT_TRUE(servers_.back()->errors().wait_for("Server listening"))
        << servers_.back()->errors().so_far();
  }

  Arguments on(int host) const { return hosts_.made() ? hosts_.on(host) : Arguments(); }
  std::string address(int host) const {
    return hosts_.made() ? hosts_.address(host) : fmt::format("127.0.0.{}", host + 1);
  }

  // Runs the launcher on host 0, with three ranks, of which the last is on host 1.
  Tool launch(const Arguments& options, const Arguments& program, const Variables& variables = {}) {
    std::ofstream(folder_ / "hosts") << "# name\n"
                                     << address(0) << " slots=2\n"
                                     << address(1) << "\n";
    const std::string shell = fmt::format(
        "ssh -T -F /dev/null -i {} -p {} -o BatchMode=yes -o StrictHostKeyChecking=no -o "
        "UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
        folder_ / "key", port_);
    return Tool(Arguments{"run", "--hosts", folder_ / "hosts", "--ssh", shell, "--rendezvous",
                          fmt::format("{}:{}", address(0), port_ + 1)} +
                    options + Arguments{"--"} + program,
                variables, on(0));
  }
  Tool launch_shell(const std::string& script, const Arguments& options = {}) {
    return launch(options, {"sh", "-c", script});
  }

  static pid_t pid_of(Tool& tool, const std::string& name) {
    return static_cast<pid_t>(testing::number_behind(tool, name + "="));
  }

  // Others may not write to this folder, or the server would refuse the keys in it.
  const TemporaryFolder folder_;
  testing::Hosts hosts_{2};
  int port_ = 29722 + 2 * static_cast<int>(::getpid() % 1000);
  std::vector<std::unique_ptr<Process>> servers_;
};

TEST_F(Ssh, RanksOfAllHostsMeet) {
  Tool tool = launch({}, {STRETTO_BIN_DIR "/join_rank_program"}, {{"STRETTO_LOG", "error"}});
  const Ended ended = end_of(tool);
  EXPECT_EQ(ended.status, 0) << ended.errors;
  for (const int rank : {0, 1, 2}) {
    expect_contains(ended.output, fmt::format("[{0}] rank {0} of 3: sum 3", rank));
  }
  EXPECT_EQ(ended.errors, "");
}

TEST_F(Ssh, RanksFindEnvironmentAndFolderOfTheLauncherAndNobodySeesTheKey) {
  const std::string key(64, 'a');
  Tool tool = launch({"--no-prefix"},
                     {"sh", "-c",
                      "echo $STRETTO_RANK$STRETTO_LOCAL_RANK $MINE $PWD $0 ${#LARGE}; "
                      "test $STRETTO_JOB_KEY = $EXPECTED || exit 5; "
                      "test $STRETTO_RANK = 2 || exit 0; "
                      "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; printf end",
                      "caf\xe9"},
                     {{"MINE", "a b\n'c'"},
                      {"LARGE", std::string(100000, 'x')},
                      {"STRETTO_JOB_KEY", key},
                      {"EXPECTED", key}});
  const Ended ended = end_of(tool);
  EXPECT_EQ(ended.status, 0) << ended.errors;
  const std::string folder = std::filesystem::current_path();
  for (const char* place : {"00", "11", "20"}) {
    expect_contains(ended.output, fmt::format("{} a b 'c' {} caf\xe9 100000\n", place, folder));
  }
  expect_contains(ended.output, "run --agent");
  expect_lacks(ended.output, key);
}

TEST_F(Ssh, TheDeathOfARankElsewhereEndsTheJobAndIsTheCause) {
  Tool tool =
      launch_shell("echo rank$STRETTO_RANK=$$; test $STRETTO_RANK = 2 && kill -9 $$; exec sleep 60",
                   {"--settle", "0.1", "--json"});
  const pid_t zero = pid_of(tool, "rank0");
  const Ended ended = end_of(tool);
  EXPECT_EQ(ended.status, 128 + SIGKILL);
  expect_contains(ended.errors, fmt::format("rank 2 on {} failed first: SIGKILL", address(1)));
  expect_contains(ended.errors,
                  fmt::format("rank 0 on {}: SIGTERM (sent by this launcher)", address(0)));
  const auto json = nlohmann::json::parse(ended.output.substr(ended.output.find('{')));
  EXPECT_EQ(json["first_failure"], 2);
  EXPECT_EQ(json["ranks"][2]["host"], address(1));
  EXPECT_TRUE(testing::ends_soon(zero));
}

TEST_F(Ssh, SaysWhatARankThatWasKilledElsewhereWasDoing) {
  Tool tool = launch({"--settle", "0.1"}, {STRETTO_BIN_DIR "/store_rank_program", "die"});
  const Ended ended = end_of(tool);
  EXPECT_EQ(ended.status, 128 + SIGKILL);
  expect_contains(ended.errors, "its last operation was all_reduce(sum f32 [8]) #3");
}

TEST_F(Ssh, RanksOfOtherHostsAreToldWhatHasKilledARank) {
  Tool tool = launch({}, {STRETTO_BIN_DIR "/fault_rank_program", "private", "100", "600"});
  ::kill(testing::ready_ranks(tool, 3)[2], SIGKILL);
  const Ended ended = end_of(tool);
  for (const int rank : {0, 1}) {
    const std::size_t at = ended.output.find(fmt::format("[{}] failed PeerLost: ", rank));
    ASSERT_NE(at, std::string::npos) << ended.output;
    const std::string line = ended.output.substr(at, ended.output.find('\n', at) - at);
    expect_contains(line, "lost rank 2 (tcp, ");
    expect_contains(line, "): killed by SIGKILL");
    expect_contains(line, "; survivors may call shrink()");
  }
}

TEST_F(Ssh, TheLaunchersDeathEndsTheRanksEverywhere) {
  Tool tool =
      launch_shell("sleep 60 & echo child$STRETTO_RANK=$!; echo rank$STRETTO_RANK=$$; wait");
  std::vector<pid_t> pids;
  for (const char* name : {"rank0", "rank1", "rank2", "child2"}) pids.push_back(pid_of(tool, name));
  ::kill(tool.pid(), SIGKILL);
  EXPECT_EQ(tool.status(), 128 + SIGKILL);
  for (const pid_t pid : pids) EXPECT_TRUE(testing::ends_soon(pid));
}

TEST_F(Ssh, PassesSignalsOn) {
  // The agent's word that a rank has started may arrive behind the rank's first output, and a
  // launcher that is told to end before all have started says so by its exit status.
  Tool tool = launch_shell(
      "trap 'echo got TERM; exit 0' TERM; sleep 0.3; echo ready$STRETTO_RANK=$$; "
      "while :; do sleep 0.01; done");
  for (const char* name : {"ready0", "ready1", "ready2"}) (void)pid_of(tool, name);
  ::kill(tool.pid(), SIGTERM);
  const Ended ended = end_of(tool);
  EXPECT_EQ(ended.status, 0) << ended.errors;
  expect_contains(ended.output, "[2] got TERM");
}

// The host is lost as if it had lost power, but this is noticed at once.
TEST_F(Ssh, TheLossOfAHostEndsTheJob) {
  Tool tool = launch_shell(
      "test $STRETTO_RANK = 2 && echo agent=$(ps -o ppid= -p $PPID); "
      "echo rank$STRETTO_RANK=$$; exec sleep 60",
      {"--settle", "0.1"});
  const pid_t zero = pid_of(tool, "rank0");
  const pid_t two = pid_of(tool, "rank2");
  ::kill(pid_of(tool, "agent"), SIGKILL);
  const Ended ended = end_of(tool);
  EXPECT_EQ(ended.status, 255);
  expect_contains(
      ended.errors,
      fmt::format("rank 2 on {} failed first: lost with its host, as \"ssh ", address(1)));
  EXPECT_TRUE(testing::ends_soon(zero));
  EXPECT_TRUE(testing::ends_soon(two));
}

TEST_F(Ssh, AnAgentSaysWhyItGivesUp) {
  Tool tool = launch_shell("test $STRETTO_RANK = 2 && echo guardian=$PPID; exec sleep 60",
                           {"--settle", "0.1"});
  ::kill(pid_of(tool, "guardian"), SIGKILL);
  const Ended ended = end_of(tool);
  EXPECT_EQ(ended.status, 255);
  expect_contains(ended.errors, "stretto run: the process that looks after the ranks");
}

TEST_F(Ssh, AProgramThatIsNotThereIsNamedWithItsHost) {
  Tool tool = launch({}, {"/no/such/program"});
  const Ended ended = end_of(tool);
  EXPECT_EQ(ended.status, 127) << ended.errors;
  expect_contains(ended.errors, ": cannot start \"/no/such/program\"");
}

TEST_F(Ssh, AHostThatIsNotThereYetIsTriedAgain) {
  servers_.pop_back();
  {
    Tool tool = launch_shell("exec sleep 60", {"--settle", "0.1"});
    const Ended ended = end_of(tool);
    EXPECT_EQ(ended.status, 255);
    expect_contains(ended.errors,
                    fmt::format("rank 2 on {} failed first: not started", address(1)));
  }
  Tool tool = launch_shell("echo here", {"--wait-for-hosts", "60"});
  ASSERT_TRUE(tool.errors().wait_for("Connection refused"));
  serve(1);
  const Ended ended = end_of(tool);
  EXPECT_EQ(ended.status, 0) << ended.errors;
  expect_contains(ended.output, "[2] here");
}

// An ssh that leaves a connection behind for others to share is such a process.
TEST(RemoteShell, ItsEndIsNoticedAlthoughAnotherProcessHoldsItsOutput) {
  const TimePoint begin = Clock::now();
  const Ended ended = testing::run(
      {"run", "--hosts", "node0", "--ssh", "sh -c 'sleep 60 & exit 127'", "--", "true"});
  EXPECT_EQ(ended.status, 255);
  expect_contains(ended.errors, "rank 0 on node0 failed first: not started, as \"sh -c ");
  expect_contains(ended.errors, "ended with exit code 127");
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));
}

// The rank's end is reported behind its words on standard error, which nobody reads.
TEST(RemoteShell, ARankWhoseOutputNobodyReadsIsNotTakenForOneThatDoesNotEnd) {
  testing::UnreadPipe errors;
  Tool tool({"run", "--hosts", "node0", "--ssh", "sh -c 'eval \"$1\"'", "--grace", "0", "--", "sh",
             "-c", "echo words >&2; sleep 0.5; echo written; exec sleep 60"},
            {}, errors.before({STDERR_FILENO}));
  ASSERT_TRUE(tool.output().wait_for("written"));
  ::kill(tool.pid(), SIGTERM);
  const Deadline deadline = Deadline::after(std::chrono::seconds(17));
  EXPECT_FALSE(comes_true([&] { return !testing::runs(tool.pid()); }, deadline));
  testing::Collector said = errors.read();
  (void)tool.status();
  expect_contains(said.finish(), "[0] words\n");
  expect_lacks(said.finish(), "not ended on SIGKILL");
}

// Node1 ends while nobody reads the output of a rank on node0.
TEST(RemoteShell, HostsEndAtTheSameTime) {
  const TemporaryFolder folder;
  const std::string left = folder / "left";
  testing::UnreadPipe output;
  Tool tool(
      {"run", "--hosts", "node0,node1", "--ssh", "sh -c 'eval \"$1\"'", "--rendezvous",
       fmt::format("127.0.0.1:{}", free_port()), "--", "sh", "-c",
       "if [ $STRETTO_RANK = 0 ]; then echo words; else sleep 60 & echo $! >" + left + "; fi"},
      {}, output.before({STDOUT_FILENO}));
  pid_t child = 0;
  ASSERT_TRUE(comes_true([&] {
    child = std::atoi(read_file(left).c_str());
    return child > 0;
  }));
  EXPECT_TRUE(testing::ends_soon(child));
  testing::Collector said = output.read();
  EXPECT_EQ(tool.status(), 0);
  expect_contains(said.finish(), "[0] words\n");
}

TEST(RemoteShell, OneThatDoesNotEndByItselfIsEnded) {
  for (const char* script : {"echo begun; kill -STOP $$", "trap \"\" TERM; echo begun"}) {
    Tool tool({"run", "--hosts", "node0", "--ssh", fmt::format("sh -c '{}; sleep 60'", script),
               "--", "true"});
    ASSERT_TRUE(tool.output().wait_for("begun"));
    ::kill(tool.pid(), SIGTERM);
    const auto has_ended = [&] { return !testing::runs(tool.pid()); };
    ASSERT_TRUE(comes_true(has_ended)) << script;
    EXPECT_EQ(tool.status(), 128 + SIGTERM) << script;
  }
}

TEST(RemoteShell, AnSshKeepsTheLaunchersOptionsBehindThoseOfTheUser) {
  const TemporaryFolder folder;
  const std::string ssh = folder / "ssh";
  write_file(ssh, "#!/bin/sh\necho words \"$@\"\nexit 1\n");
  std::filesystem::permissions(ssh, std::filesystem::perms::owner_all);
  const auto words = [&](const std::string& given) {
    return testing::run({"run", "--hosts", "node0", "--ssh", ssh + given, "--", "true"}).output;
  };
  const std::string usual = words(" -vp 2222 -oConnectTimeout=3");
  expect_contains(usual, "words -vp 2222 -oConnectTimeout=3 -T -o BatchMode=yes");
  expect_contains(usual, "-o ServerAliveInterval=5 -o ControlPath=none node0 exec ");
  expect_contains(words(" -tt"), "words -tt -o BatchMode=yes");
  // These name a host and a command of their own, or a file of settings.
  for (const char* given : {" gateway docker exec -i", " -i key gateway", " -p 22 -F file"}) {
    expect_contains(words(given), fmt::format("words{} node0 exec ", given));
  }
}

// Otherwise one that asks something would be stopped, and the launcher would wait for it.
TEST(RemoteShell, HasNoTerminal) {
  const Ended ended =
      testing::run({"run", "--hosts", "node0", "--ssh",
                    "sh -c 'test $(ps -o sid= -p $$) = $$ && echo alone'", "--", "true"});
  expect_contains(ended.output, "alone\n");
}

// Without these, an ssh server would take hours to notice that the network has lost the launcher.
TEST(RemoteShell, AnAgentThatHasNothingToTellGivesSignsOfLife) {
  const TemporaryFolder folder;
  const std::string said = folder / "said";
  const std::string shell = fmt::format("sh -c '(eval \"$1\") 2>&1 | tee {} >&2'", said);
  const Ended ended =
      testing::run({"run", "--hosts", "node0", "--ssh", shell, "--", "sh", "-c", "sleep 7"});
  EXPECT_EQ(ended.status, 0) << ended.errors;
  EXPECT_EQ(ended.errors, "");
  const std::regex sign("\x1estretto-[0-9a-f]{32} \n");
  EXPECT_TRUE(std::regex_search(read_file(said), sign)) << read_file(said);
}

TEST(RemoteShell, TheLogOfAnotherHostIsThatOfTheLauncher) {
  const Ended ended =
      testing::run({"run", "--hosts", "node0", "--ssh", "sh -c 'eval \"$1\"'", "--", "true"},
                   {{"STRETTO_LOG", "debug"}});
  EXPECT_EQ(ended.status, 0);
  expect_contains(ended.errors, "stretto run debug: rank -1 connected to the store from ");
}

}  // namespace
}  // namespace stretto
