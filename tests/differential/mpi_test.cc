// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// MPI is a second, independent oracle: the same random collectives run through MPI and through
// stretto, in the same processes.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <tuple>

#include "tests/end_to_end/tool.h"
#include "tests/support/expect_contains.h"
#include "tests/support/mpi_files.h"

namespace stretto::testing {
namespace {

const std::string kProgram = mpi_file(STRETTO_BIN_DIR, "mpi_rank_program");

class Mpi : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kProgram)) {
      GTEST_SKIP() << "built without MPI: CMake found no mpi.h to compare with";
    }
    Process version({"mpirun", "--version"}, {});
    if (end_of(version).status != 0) GTEST_SKIP() << "mpirun is not on PATH";
  }

  Ended run_program(int size, int seed, const Arguments& more = {},
                    const std::string& backend = "stretto") const {
    Variables variables = mpirun_variables(folder_);
    variables.insert({{"STRETTO_BACKEND", backend},
                      {"STRETTO_PLUGIN", mpi_file(STRETTO_BIN_DIR, "libstretto_mpi.so")}});
    const Arguments command{
        "mpirun",        "-n", std::to_string(size), kProgram, std::to_string(seed),
        folder_ / "job", "120"};
    Process job(command + more, variables);
    return end_of(job);
  }

  const TemporaryFolder folder_;
};

TEST_P(Mpi, GivesTheSame) {
  const auto& [size, seed] = GetParam();
  const Ended ended = run_program(size, seed);
  EXPECT_EQ(ended.status, 0) << ended.errors;
}

// Stretto's backend is MPI: all collectives, dtypes and reductions that MPI has, also in groups.
TEST_P(Mpi, GivesTheSameAsTheBackend) {
  const auto& [size, seed] = GetParam();
  const Ended ended = run_program(size, seed + 10, {}, "mpi");
  EXPECT_EQ(ended.status, 0) << ended.errors;
}

INSTANTIATE_TEST_SUITE_P(, Mpi,
                         ::testing::Combine(::testing::Values(2, 3, 4), ::testing::Values(1, 2, 3)),
                         [](const auto& tested) {
                           return "ranks" + std::to_string(std::get<0>(tested.param)) + "_seed" +
                                  std::to_string(std::get<1>(tested.param));
                         });

class MpiCanary : public Mpi {};

// One wrong number among thousands must be noticed, and the text must say how to see it again.
TEST_P(MpiCanary, IsFound) {
  const auto& [size, seed] = GetParam();
  const Ended ended = run_program(size, seed, {"canary"});
  EXPECT_NE(ended.status, 0);
  expect_contains(ended.errors, "operation 9: ");
  expect_contains(ended.errors, "again: mpirun -n 3 ");
}

INSTANTIATE_TEST_SUITE_P(, MpiCanary, ::testing::Values(std::tuple(3, 1)));

class MpiThreads : public Mpi {};

// MPI waits for all ranks of a new group, but another rank may be making another group first.
TEST_P(MpiThreads, MakeGroupsAtTheSameTime) {
  const auto& [size, seed] = GetParam();
  const Ended ended = run_program(size, seed, {"threads"}, "mpi");
  EXPECT_EQ(ended.status, 0) << ended.errors;
}

INSTANTIATE_TEST_SUITE_P(, MpiThreads, ::testing::Values(std::tuple(3, 0)));

}  // namespace
}  // namespace stretto::testing
