// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// `stretto run` as a user runs it: the built program, with shell scripts as ranks.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include <fmt/format.h>

#include "stretto/base/clock.h"
#include "tests/end_to_end/tool.h"
#include "tests/support/expect_contains.h"
#include "tests/support/forbid.h"
#include "tests/support/free_port.h"
#include "tests/support/in_child.h"

namespace stretto {
namespace {

using namespace testing;  // NOLINT: what tool.h gives to tests.

const std::string kStoreRank = STRETTO_BIN_DIR "/store_rank_program";

std::multiset<std::string> lines(const std::string& text) {
  std::multiset<std::string> result;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) result.insert(line);
  return result;
}

TEST(Run, FindsWhatLiesBesideItWhereItIsFoundByPath) {
  const std::string kernels = STRETTO_BIN_DIR "/libstretto_cuda_kernels.so";
  if (!std::filesystem::exists(kernels)) GTEST_SKIP() << "built without nvcc";
  Process doctor({"env", "PATH=" STRETTO_BIN_DIR ":/usr/bin:/bin", "stretto", "doctor"}, {});
  expect_contains(testing::end_of(doctor).output, kernels);
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

TEST(Run, ShowsProgressThatEndsNoLine) {
  const TemporaryFolder folder;
  const std::string go = folder / "go";
  Tool tool(shell(1, fmt::format("printf '1 of 2\\r'; printf load; until [ -e {} ]; do sleep 0.01; "
                                 "done; printf 'ed\\n2 of 2\\r'",
                                 go)));
  EXPECT_TRUE(tool.output().wait_for("[0] 1 of 2\r[0] load"));
  write_file(go, "");
  EXPECT_EQ(tool.status(), 0);
  EXPECT_EQ(tool.output().finish(), "[0] 1 of 2\r[0] loaded\n[0] 2 of 2\r\n");
}

TEST(Run, GivesRanksNothingToRead) {
  EXPECT_EQ(run(shell(1, "readlink /proc/self/fd/0")).output, "[0] /dev/null\n");
}

TEST(Run, TheGuardianKeepsNoStreamsOpenWhereMemfdIsForbidden) {
  const int code = exit_code_in_child([] {
    forbid({SYS_memfd_create}, ENOSYS);
    const Ended ended = run(shell(1, "cd /proc/$PPID/fd && readlink 0 1 2", {"--no-prefix"}));
    return ended.output == "/dev/null\n/dev/null\n/dev/null\n" ? 0 : 1;
  });
  EXPECT_EQ(code, 0) << "of the process that looks after the ranks";
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
  expect_contains(ended.errors, "stretto run: rank 1 failed first: exit code 3");
  expect_contains(ended.errors, "rank 2: SIGTERM (sent by this launcher)");
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(4));
}

TEST(Run, LetsTheOthersSpeakBeforeItEndsThem) {
  const Ended ended =
      run(shell(2, "test $STRETTO_RANK = 1 && exit 3; sleep 0.1; echo peer lost >&2; exit 1"));
  EXPECT_EQ(ended.status, 3);
  expect_contains(ended.errors, "[0] peer lost\n");
  expect_contains(ended.errors, "rank 0: exit code 1, 0.");
}

TEST(Run, SaysWhatAKilledRankWasDoing) {
  const Ended ended = run({"run", "-n", "2", "--settle", "0", "--", kStoreRank, "die"});
  EXPECT_EQ(ended.status, 128 + SIGKILL);
  expect_contains(ended.errors,
                  "rank 1 failed first: SIGKILL (killed from outside, possibly by the "
                  "out-of-memory killer)");
  expect_contains(ended.errors, "its last operation was all_reduce(sum f32 [8]) #3");
}

TEST(Run, KillsWhoDoesNotEndInTime) {
  const Ended ended = run(shell(2, "trap '' TERM; test $STRETTO_RANK = 1 && exit 3; sleep 60",
                                {"--settle", "0.05", "--grace", "0.05"}));
  EXPECT_EQ(ended.status, 3);
  expect_contains(ended.errors, "rank 0: SIGKILL");
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

// Ranks have not yet said how they handle the signal, and it would end them.
TEST(Run, PassesNothingForProgramsOnToRanksThatStartAfterIt) {
  sigset_t blocked, before;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGUSR1);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before);  // Blocked until the launcher asks for it.
  Tool tool({"run", "-n", "2", "--", "sleep", "0.2"});
  ::kill(tool.pid(), SIGUSR1);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(tool.status(), 0) << tool.errors().finish();
}

TEST(Run, AnInterruptedJobReturnsLikeAnInterruptedProgram) {
  Tool tool({"run", "-n", "2", "--", "sh", "-c", "echo ready; exec sleep 60"});
  ASSERT_TRUE(tool.output().wait_for("[0] ready"));
  ASSERT_TRUE(tool.output().wait_for("[1] ready"));
  ::kill(tool.pid(), SIGINT);
  EXPECT_EQ(tool.status(), 128 + SIGINT);
  expect_contains(tool.errors().finish(), "rank 1: SIGINT (sent by this launcher)");
}

TEST(Run, SaysWhyAProgramCannotStart) {
  const Ended missing = run({"run", "-n", "2", "--json", "--", "no-such-program"});
  EXPECT_EQ(missing.status, 127);
  expect_contains(missing.output, "\"exit_status\":127,");
  EXPECT_EQ(missing.errors,
            "stretto run: cannot start \"no-such-program\": No such file or directory\n");
  const Ended forbidden = run({"run", "--", "/etc/passwd"});
  EXPECT_EQ(forbidden.status, 126);
}

TEST(Run, SaysWhatIsWrongWithACommandLine) {
  EXPECT_EQ(run({"run", "-n", "2"}).status, 2);
  expect_contains(run({"run"}).errors, "put it behind \"--\"");
  expect_contains(run({"run", "./train"}).errors, "goes behind \"--\"");
  expect_contains(run({"run", "--settle", "nan", "--", "x"}).errors, "nan is no number of seconds");
  expect_contains(run({"run", "-n", "0", "--", "x"}).errors, "--ranks");
  expect_contains(run({"run", "--hosts", ",", "--", "x"}).errors, "--hosts , names no host");
  expect_contains(run({"run", "--hosts", "", "--", "x"}).errors, "names no host");
  expect_contains(run({"run", "--ssh", "rsh", "--", "x"}).errors, "--ssh is for the way to");
  expect_contains(run({"run", "--host-index", "0", "--", "x"}).errors, "requires --hosts");
  expect_contains(run({"run", "--hosts", "a,b", "--host-index", "2", "--", "x"}).errors,
                  "from 0 to 1");
  expect_contains(run({"run", "--hosts", "a,b", "--host-index", "1", "--", "x"}).errors,
                  "stretto run --print-job-key");
  expect_contains(run({"run", "--", "true"}, {{"STRETTO_JOB_KEY", "x"}}).errors,
                  "STRETTO_JOB_KEY: a job key has 64");
  const Ended without_port = run({"run", "--rendezvous", "node0", "--", "true"});
  EXPECT_EQ(without_port.status, 2);
  expect_contains(without_port.errors, "--rendezvous: \"node0\" is no address");
  // No host has this address.
  expect_contains(
      run({"run", "--rendezvous", "192.0.2.1:29600", "--", "true"}).errors,
      "the store cannot listen: this host has no such address: binding 192.0.2.1:29600: "
      "Cannot assign requested address; --rendezvous HOST:PORT names another place");
  EXPECT_EQ(run({"run", "--help"}).status, 0);
  EXPECT_EQ(run({"unknown"}).status, 2);
}

// A stand-in for mpirun prints its arguments.
TEST(Run, AnMpirunIsToldWhereTheFirstHostIsReached) {
  const TemporaryFolder folder;
  const std::string mpirun = folder / "mpirun";
  write_file(mpirun, "#!/bin/sh\necho $STRETTO_RENDEZVOUS $*\n");
  std::filesystem::permissions(mpirun, std::filesystem::perms::owner_all);
  const std::string path = folder.path() + ":/usr/bin:/bin";
  for (const auto& [hosts, place] :
       {std::pair("node0,node1", "node0:29600"), std::pair("fd77::1,fd77::2", "[fd77::1]:29600")}) {
    const Ended ended =
        run({"run", "--hosts", hosts, "--transport", "mpi", "--", "train"}, {{"PATH", path}});
    EXPECT_EQ(ended.status, 0) << ended.errors;
    expect_contains(ended.output, fmt::format("tcp://{} -n 2 -host ", place));
  }
  expect_contains(run({"run", "--hosts", "me@node0", "--transport", "mpi", "--", "train"}).errors,
                  "me@node0 names a user, but mpirun reaches hosts in its own way");
}

TEST(Run, RanksOfTwoLaunchersMeetAlthoughThoseAtTheStoreEndFirst) {
  const Variables key{{"STRETTO_JOB_KEY", run({"run", "--print-job-key"}).output.substr(0, 64)}};
  const int port = free_port();
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
  expect_contains(ended.errors, "refused a connection from 127.0.0.1:");
  expect_contains(ended.errors, "not a stretto peer: the first bytes were 72 61 6e");
}

// The store says so in a message that nobody reads, and goes on.
TEST(Run, AStrangerIsRefusedAlthoughNobodyReadsThat) {
  const TemporaryFolder folder;
  const std::string met = folder / "met";
  UnreadPipe errors;
  Tool tool(shell(2, "p=${STRETTO_RENDEZVOUS#*:}; test $STRETTO_RANK = 0 || exec " + kStoreRank +
                         " meet; bash -c \"echo random >/dev/tcp/127.0.0.1/$p\"; " + kStoreRank +
                         " meet && touch " + met),
            {}, errors.before({STDERR_FILENO}));
  EXPECT_TRUE(comes_true([&] { return std::filesystem::exists(met); }));
  Collector said = errors.read();
  EXPECT_EQ(tool.status(), 0);
  expect_contains(said.finish(), "stretto run warning: refused a connection from 127.0.0.1:");
}

TEST(Run, SurvivesThatNobodyReadsItsOutput) {
  const Ended ended =
      run(shell(1, "{ " STRETTO_TOOL " run -n 2 -- seq 1 50000; echo ended $? >&2; } | head -n 1"));
  EXPECT_EQ(ended.status, 0);
  EXPECT_EQ(lines(ended.output).size(), 1u);
  expect_contains(ended.errors, "[0] ended 0\n");
}

// Each rank has two pipes.
TEST(Run, RaisesALimitOnDescriptorsThatIsTooLowForItsRanks) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < 2048) GTEST_SKIP() << "ulimit -Hn allows no more";
  Process tool({"sh", "-c", "ulimit -Sn 1024 && exec \"$0\" run -n 520 -- true", STRETTO_TOOL},
               Variables{});
  EXPECT_EQ(tool.status(), 0) << tool.errors().so_far();
}

TEST(Version, IsTheOneOfTheBuild) {
  const std::string text = read_file(STRETTO_SOURCE_DIR "/CMakeLists.txt");
  const std::string printed = run({"--version"}).output;
  const std::string version = printed.substr(8, printed.find(" (") - 8);
  expect_contains(text, "project(stretto VERSION " + version + " ");
}

TEST(Output, OfACommandThatIsLostMakesItFail) {
  Tool tool({"--version"}, {}, {"sh", "-c", "exec \"$@\" >/dev/full", "sh"});
  EXPECT_EQ(tool.status(), 1);
  EXPECT_EQ(tool.errors().finish(), "stretto: standard output: No space left on device\n");
}

// These are more ranks than a signed byte can number.
TEST(ManyRanks, JoinAndPassABarrier) {
  const Ended ended =
      run({"run", "-n", "130", "--no-prefix", "--", kToolPath, "bench", "barrier", "--json"});
  EXPECT_EQ(ended.status, 0) << ended.errors;
  expect_contains(ended.output, "\"operation\":\"barrier\",\"ranks\":130");
}

}  // namespace
}  // namespace stretto
