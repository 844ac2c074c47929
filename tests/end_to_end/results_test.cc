// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/end_to_end/tool.h"
#include "tests/support/expect_contains.h"
#include "tests/support/mpi_files.h"

namespace stretto {
namespace {

// Every collective gives the right values between real processes, over shared memory and over
// sockets.

using testing::Arguments;
using testing::Ended;
using testing::occurrences;
using testing::Variables;

Ended values_of(int ranks, const Variables& variables, const Arguments& arguments = {}) {
  return testing::run(Arguments{"run", "-n", std::to_string(ranks), "--no-prefix", "--",
                                STRETTO_BIN_DIR "/values_rank_program"} +
                          arguments,
                      variables);
}

struct Case {
  const char* name;
  int ranks;
  Variables variables;
};
std::ostream& operator<<(std::ostream& out, const Case& tested) { return out << tested.name; }

class Values : public ::testing::TestWithParam<Case> {};

TEST_P(Values, OfAllCollectivesAndByteExchangesAreThoseOfTheOracle) {
  const auto& [name, ranks, variables] = GetParam();
  const Ended ended = values_of(ranks, variables);
  EXPECT_EQ(ended.status, 0) << ended.output << ended.errors;
  EXPECT_EQ(occurrences(ended.output, "right\n"), static_cast<std::size_t>(ranks)) << ended.output;
}

const Variables kTcp = {{"STRETTO_TRANSPORT", "tcp"}};
const Variables kTls = {{"STRETTO_TRANSPORT", "tcp"}, {"STRETTO_ENCRYPTION", "tls"}};
const Variables kSingleCopy = {{"STRETTO_SINGLE_COPY", "always"}};

INSTANTIATE_TEST_SUITE_P(, Values,
                         ::testing::Values(Case{"shm", 3, {}}, Case{"tcp", 2, kTcp},
                                           Case{"tls", 3, kTls},
                                           Case{"single_copy", 2, kSingleCopy}),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(SingleCopy, IsOneOfThreeWishes) {
  const Ended ended = values_of(2, {{"STRETTO_SINGLE_COPY", "yes"}}, {"choice"});
  EXPECT_NE(ended.status, 0);
  expect_contains(ended.output, "STRETTO_SINGLE_COPY=\"yes\" is not one of automatic, always, off");
}

TEST(Algorithm, IsThatOfTheEnvironmentWhereItExists) {
  const Variables tcp = {{"STRETTO_TRANSPORT", "tcp"}, {"STRETTO_LINK_CACHE", "off"}};
  for (const std::string name : {"ring", "binomial_tree"}) {
    Variables variables = tcp;
    variables["STRETTO_ALGORITHM"] = name;
    const Ended ended = values_of(2, variables, {"choice"});
    EXPECT_EQ(ended.status, 0) << ended.output << ended.errors;
    expect_contains(ended.output, "chosen " + name + ": it was asked for");
  }
  const Ended ended = values_of(2, tcp, {"choice"});
  expect_lacks(ended.output, "asked for");
  expect_contains(ended.output, "chosen ");
}

// Jobs whose messages an MPI library or UCX moves.

Ended started_by_us(const Variables& variables) {
  return testing::run({"run", "-n", "2", "--no-prefix", "--", STRETTO_BIN_DIR "/join_rank_program"},
                      variables);
}

TEST(NoMpiPlugin, IsAskedForByName) {
  const Ended ended =
      started_by_us({{"STRETTO_TRANSPORT", "mpi"}, {"STRETTO_PLUGIN", "/nowhere/mpi.so"}});
  EXPECT_NE(ended.status, 0);
  expect_contains(ended.errors, "the plug-in for mpi cannot be loaded");
  expect_contains(ended.errors, "/nowhere/mpi.so");
}

class MpiPlane : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kPlugin)) {
      GTEST_SKIP() << "built without MPI: CMake found none";
    }
  }

  Variables variables_with(const Variables& more) const {
    Variables variables = testing::mpirun_variables(folder_);
    variables.insert({{"STRETTO_LOG", "info"}, {"STRETTO_PLUGIN", kPlugin}});
    variables.insert(more.begin(), more.end());
    return variables;
  }
  Ended started_by_mpirun(Variables more, const Arguments& program = {kValues}) const {
    more.insert({"STRETTO_RENDEZVOUS", "file://" + (folder_ / "job")});
    testing::Process job(Arguments{"mpirun", "-n", "3"} + program, variables_with(more));
    return testing::end_of(job);
  }

  static constexpr const char* kValues = STRETTO_BIN_DIR "/values_rank_program";
  // The last word of each rank. No line end follows: an mpirun may put lines of two ranks together.
  static constexpr const char* kRight = "right";
  const std::string kPlugin = testing::mpi_file(STRETTO_BIN_DIR, "libstretto_mpi.so");
  const TemporaryFolder folder_;
};

TEST_F(MpiPlane, GivesTheValuesOfTheOracle) {
  const Ended ended = started_by_mpirun({{"STRETTO_TRANSPORT", "mpi"}});
  EXPECT_EQ(ended.status, 0) << ended.errors;
  EXPECT_EQ(occurrences(ended.output, kRight), 3u) << ended.output << ended.errors;
  expect_contains(ended.errors, "messages are moved by");
}

// In MPI nobody waits for that rank. All ranks exit with 0, or mpirun would end those that are
// left.
TEST_F(MpiPlane, ARankThatCannotBeConnectedEndsTheJoinOfAll) {
  const std::string script =
      "test ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} = 1 && export "
      "STRETTO_CONGESTION_CONTROL=nonsense\n" STRETTO_BIN_DIR "/join_rank_program\nexit 0";
  const Ended ended = started_by_mpirun(
      {{"STRETTO_TRANSPORT", "mpi"}, {"TEST_NO_SHARED_MEMORY", "yes"}}, {"sh", "-c", script});
  EXPECT_EQ(ended.status, 0) << ended.errors;
  expect_contains(ended.errors, "rank 1 of 3 could not join: ");
  EXPECT_EQ(occurrences(ended.errors, "of 3 could not join: rank 1 ("), 2u) << ended.errors;
  expect_contains(ended.errors, "STRETTO_CONGESTION_CONTROL=nonsense: ");
}

// `stretto run` has mpirun start the ranks.
TEST_F(MpiPlane, MovesMessagesOfRanksThatStrettoRunHasStarted) {
  const Ended ended = testing::run(
      {"run", "-n", "2", "--transport", "mpi", "--", STRETTO_BIN_DIR "/values_rank_program"},
      variables_with({}));
  EXPECT_EQ(ended.status, 0) << ended.errors;
  EXPECT_EQ(occurrences(ended.output, kRight), 2u) << ended.output << ended.errors;
  expect_contains(ended.errors, "messages are moved by");
}

TEST_F(MpiPlane, AFailureUnderStrettoRunIsThatOfMpirun) {
  const auto start = [&](const Arguments& options) {
    const Arguments program = {"--transport", "mpi", "--", "sh", "-c", "exit 3"};
    return testing::run(Arguments{"run", "-n", "2"} + options + program, variables_with({}));
  };
  const Ended failed = start({});
  EXPECT_EQ(failed.status, 3) << failed.errors;
  expect_contains(failed.errors, "stretto run: mpirun failed first: exit code 3");
  const Ended refused = start({"--hosts", "node0,node1", "--host-index", "1"});
  EXPECT_EQ(refused.status, 2);
  expect_contains(refused.errors, "--host-index is not for --transport mpi");
}

// MPI runs the collectives: alone, and when it also moves the messages.
TEST_F(MpiPlane, RunsCollectivesThatGiveTheValuesOfTheOracle) {
  for (const char* transport : {"auto", "mpi"}) {
    const Ended ended =
        started_by_mpirun({{"STRETTO_BACKEND", "mpi"}, {"STRETTO_TRANSPORT", transport}});
    EXPECT_EQ(ended.status, 0) << ended.errors;
    EXPECT_EQ(occurrences(ended.output, kRight), 3u) << ended.output << ended.errors;
    expect_contains(ended.output, "the job's backend is that library");
    expect_contains(ended.errors, "collectives are run by");
  }
}

TEST(Backend, IsOneOfThree) {
  for (const auto& [backend, text] :
       {std::pair("gloo", "STRETTO_BACKEND=\"gloo\" is not one of stretto, mpi, nccl"),
        std::pair("nccl", "NCCL cannot be loaded")}) {
    const Ended ended =
        started_by_us({{"STRETTO_BACKEND", backend}, {"STRETTO_NCCL_LIBRARY", "/nowhere"}});
    EXPECT_NE(ended.status, 0);
    expect_contains(ended.errors, text);
  }
}

TEST_F(MpiPlane, SaysThatMpirunMustStartIt) {
  const Ended ended = started_by_us(variables_with({{"STRETTO_TRANSPORT", "mpi"},
                                                    {"OMPI_MCA_ess_singleton_isolated", "1"},
                                                    {"OMPI_MCA_orte_create_session_dirs", "0"}}));
  EXPECT_NE(ended.status, 0);
  expect_contains(ended.errors, "start the ranks with the mpirun of");
}

class UcxPlane : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::has_ucx()) GTEST_SKIP() << "no UCX: CMake found none";
  }
};

TEST_F(UcxPlane, GivesTheValuesOfTheOracle) {
  const Ended ended = testing::run({"run", "-n", "3", "--no-prefix", "--transport", "ucx", "--",
                                    STRETTO_BIN_DIR "/values_rank_program"},
                                   {{"STRETTO_LOG", "info"}});
  EXPECT_EQ(ended.status, 0) << ended.errors;
  EXPECT_EQ(occurrences(ended.output, "right\n"), 3u) << ended.output << ended.errors;
  EXPECT_EQ(occurrences(ended.errors, "messages are moved by UCX"), 3u) << ended.errors;
}

}  // namespace
}  // namespace stretto
