// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Jobs whose messages an MPI library moves.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/end_to_end/tool.h"

namespace stretto {
namespace {

using testing::Arguments;
using testing::Ended;
using testing::Variables;

Ended started_by_us(const Variables& variables) {
  return testing::run({"run", "-n", "2", "--no-prefix", "--", STRETTO_BIN_DIR "/join_rank_program"},
                      variables);
}

TEST(NoMpiPlugin, IsAskedForByName) {
  const Ended ended =
      started_by_us({{"STRETTO_TRANSPORT", "mpi"}, {"STRETTO_MPI_PLUGIN", "/nowhere/mpi.so"}});
  EXPECT_NE(ended.status, 0);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "the plug-in for MPI cannot be loaded", ended.errors);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "/nowhere/mpi.so", ended.errors);
}

class MpiPlane : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(STRETTO_BIN_DIR "/libstretto_mpi.so")) {
      GTEST_SKIP() << "built without MPI: CMake found none";
    }
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  const std::string folder_ = ::testing::TempDir() + "stretto_mpi_" + std::to_string(::getpid());
};

TEST_F(MpiPlane, GivesTheValuesOfTheOracle) {
  // Open MPI refuses to be root and to start more ranks than there are cores; idle ranks must not
  // keep the others from the cores. MPICH takes no notice.
  testing::Process job({"mpirun", "-n", "3", STRETTO_BIN_DIR "/values_rank_program"},
                       {{"STRETTO_TRANSPORT", "mpi"},
                        {"STRETTO_RENDEZVOUS", "file://" + folder_ + "/job"},
                        {"STRETTO_LOG", "info"},
                        {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                        {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                        {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                        {"OMPI_MCA_mpi_yield_when_idle", "1"},
                        {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
                        {"TMPDIR", folder_}});
  const Ended ended = testing::end_of(job);
  EXPECT_EQ(ended.status, 0) << ended.errors;
  std::size_t right = 0;
  for (auto at = ended.output.find("right\n"); at != std::string::npos;
       at = ended.output.find("right\n", at + 1)) {
    ++right;
  }
  EXPECT_EQ(right, 3u) << ended.output << ended.errors;
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "messages are moved by", ended.errors);
}

TEST_F(MpiPlane, SaysThatMpirunMustStartIt) {
  const Ended ended =
      started_by_us({{"STRETTO_TRANSPORT", "mpi"}, {"OMPI_MCA_ess_singleton_isolated", "1"}});
  EXPECT_NE(ended.status, 0);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "start the ranks with the mpirun of", ended.errors);
}

}  // namespace
}  // namespace stretto
