// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What happens to a job when something is done to one of its ranks.

#include <chrono>
#include <sstream>

#include <fmt/format.h>

#include "stretto/base/rank_vector.h"
#include "tests/end_to_end/tool.h"
#include "tests/support/expect_contains.h"

namespace stretto {
namespace {

using testing::Arguments;
using testing::Tool;
using testing::Variables;

const std::string kProgram = STRETTO_BIN_DIR "/fault_rank_program";

// A job of fault_rank_program, once all its ranks are at work.
class Job {
 public:
  Job(int ranks, const std::string& mode, const std::string& elements, const Variables& variables,
      const Arguments& more = {})
      : ranks_(ranks),
        tool_(Arguments{"run", "-n", std::to_string(ranks), "--", kProgram, mode, elements} + more,
              variables),
        pids_(testing::ready_ranks(tool_, ranks)) {}

  pid_t pid(int rank) const { return pids_[rank]; }
  Tool& tool() { return tool_; }

  // Every rank but `victim` says, within `limit`, that it has lost `victim`.
  void expect_all_name(int victim, std::chrono::milliseconds limit) {
    const TimePoint begin = Clock::now();
    for (int r = 0; r < ranks_; ++r) {
      if (r == victim) continue;
      EXPECT_TRUE(tool_.output().wait_for(fmt::format("[{}] failed PeerLost: ", r)));
    }
    EXPECT_LT(Clock::now() - begin, limit);
    std::istringstream lines(tool_.output().so_far());
    for (std::string line; std::getline(lines, line);) {
      if (line.find("failed") == std::string::npos) continue;
      expect_contains(line, fmt::format("lost rank {}", victim));
      expect_contains(line, "killed by SIGKILL");
      expect_contains(line, "survivors may call shrink()");
    }
  }

 private:
  int ranks_;
  Tool tool_;
  RankVector<pid_t> pids_;
};

struct Setting {
  const char* name;
  const char* mode;
  const char* elements;
  Variables variables;
};

class Faults : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    const auto transport = GetParam().variables.find("STRETTO_TRANSPORT");
    const bool is_ucx = transport != GetParam().variables.end() && transport->second == "ucx";
    if (is_ucx && !testing::has_ucx()) GTEST_SKIP() << "no UCX: CMake found none";
  }
};

TEST_P(Faults, AKilledRankIsNamedByAllOthersWithinASecond) {
  const Setting& setting = GetParam();
  Job job(4, setting.mode, setting.elements, setting.variables);
  ::kill(job.pid(2), SIGKILL);
  job.expect_all_name(2, std::chrono::seconds(1));
  // The launcher says which rank failed first, and how, and leaves no process behind.
  EXPECT_EQ(job.tool().status(), 128 + SIGKILL);
  const std::string report = job.tool().errors().finish();
  expect_contains(report, "rank 2");
  expect_contains(report, "SIGKILL");
  for (int r = 0; r < 4; ++r) EXPECT_TRUE(testing::ends_soon(job.pid(r))) << "rank " << r;
}

struct End {
  const char* name;
  const char* mode;
  const char* said;
};

class FaultsEnd : public ::testing::TestWithParam<End> {};

TEST_P(FaultsEnd, TheOthersSayHowARankHasEnded) {
  Job job(3, "barrier", "0", {}, {"600", GetParam().mode});
  for (const int r : {0, 2}) {
    EXPECT_TRUE(job.tool().output().wait_for(fmt::format("[{}] failed PeerLost: ", r)));
  }
  const std::string output = job.tool().output().finish();
  expect_contains(output, fmt::format("pid {}): {}", job.pid(1), GetParam().said));
  expect_contains(output, "; its last operation was ");
  expect_contains(output, "; survivors may call shrink()\n");
}

INSTANTIATE_TEST_SUITE_P(
    , FaultsEnd,
    ::testing::Values(End{"early", "0", "ended with exit code 0 without leaving the job"},
                      End{"exit_code", "7", "ended with exit code 7"},
                      End{"crash", "SEGV", "killed by SIGSEGV (a crash: access to memory"}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(FaultsStop, ARankThatIsStoppedForLongIsSaidNotToAnswer) {
  Job job(2, "barrier", "0", {}, {"3"});
  ::kill(job.pid(1), SIGSTOP);
  EXPECT_TRUE(job.tool().output().wait_for("[0] failed Timeout: "));
  const std::string output = job.tool().output().so_far();
  expect_contains(output, "), which does not answer: it is stopped");
  ::kill(job.pid(1), SIGCONT);
}

INSTANTIATE_TEST_SUITE_P(
    , Faults,
    ::testing::Values(
        Setting{"registered", "registered", "2000000", {}},
        Setting{"private_large", "private", "2000000", {}},
        Setting{"single_copy", "private", "2000000", {{"STRETTO_SINGLE_COPY", "always"}}},
        Setting{"private_small", "private", "100", {}}, Setting{"barrier", "barrier", "0", {}},
        Setting{"tcp_large", "private", "2000000", {{"STRETTO_TRANSPORT", "tcp"}}},
        Setting{"tcp_small", "private", "100", {{"STRETTO_TRANSPORT", "tcp"}}},
        Setting{"tls_large",
                "private",
                "2000000",
                {{"STRETTO_TRANSPORT", "tcp"}, {"STRETTO_ENCRYPTION", "tls"}}},
        Setting{"ucx_large",
                "private",
                "2000000",
                {{"STRETTO_TRANSPORT", "ucx"}, {"STRETTO_ALGORITHM", "ring"}}},
        Setting{"ucx_small",
                "private",
                "100",
                {{"STRETTO_TRANSPORT", "ucx"}, {"STRETTO_ALGORITHM", "direct"}}},
        Setting{"messages_over_shm", "private", "200000", {{"STRETTO_ALGORITHM", "direct"}}}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(FaultsLeaveNothing, NoSharedMemoryFileOutlivesAKilledJob) {
  Job job(3, "registered", "100000", {});
  // No file has a name to begin with. The test looks at mappings, as other programs make files
  // there.
  for (int r = 0; r < 3; ++r) {
    const std::string mapped = read_file(fmt::format("/proc/{}/maps", job.pid(r)));
    expect_contains(mapped, "/memfd:stretto ");
    expect_lacks(mapped, "/dev/shm/");
  }
  ::kill(job.pid(1), SIGKILL);
  (void)job.tool().status();
  for (int r = 0; r < 3; ++r) EXPECT_TRUE(testing::ends_soon(job.pid(r)));
}

}  // namespace
}  // namespace stretto
