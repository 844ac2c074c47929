// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/rank_environment.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace stretto::launch {
namespace {

bool contains(const std::vector<std::string>& environment, const std::string& entry) {
  return std::count(environment.begin(), environment.end(), entry) == 1;
}

bool sets(const std::vector<std::string>& environment, const std::string& variable) {
  return std::any_of(environment.begin(), environment.end(),
                     [&](const std::string& entry) { return entry.starts_with(variable + "="); });
}

TEST(RankEnvironment, TellsARankItsPlace) {
  const LaunchOptions options{.command = {"train"},
                              .hosts = {{"node0", 4}, {"node1", 4}},
                              .host_index = 1,
                              .key = bootstrap::JobKey::generate().or_throw()};
  const auto environment = rank_environment(options,
                                            {.local_rank = 2,
                                             .rendezvous = "node0:29600",
                                             .master = "node0:29601",
                                             .status_fd = 9,
                                             .usable_cores = 10},
                                            {"HOME=/home/me", "STRETTO_RANK=99"});
  for (const char* entry :
       {"HOME=/home/me", "STRETTO_RANK=6", "STRETTO_SIZE=8", "STRETTO_LOCAL_RANK=2",
        "STRETTO_LOCAL_SIZE=4", "STRETTO_RENDEZVOUS=node0:29600", "STRETTO_STATUS_FD=9", "RANK=6",
        "WORLD_SIZE=8", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=node0",
        "MASTER_PORT=29601", "OMP_NUM_THREADS=2", "PYTHONUNBUFFERED=1"}) {
    EXPECT_TRUE(contains(environment, entry)) << entry;
  }
  EXPECT_TRUE(contains(environment, "STRETTO_JOB_KEY=" + options.key.hexadecimal()));
}

TEST(RankEnvironment, KeepsWhatTheUserHasChosen) {
  const auto environment = rank_environment(
      {.hosts = {{"", 2}}}, {.usable_cores = 1},
      {"OMP_NUM_THREADS=7", "PYTHONUNBUFFERED=x=y", "MASTER_ADDR=elsewhere", "MASTER_PORT=7"});
  EXPECT_TRUE(contains(environment, "OMP_NUM_THREADS=7"));
  EXPECT_TRUE(contains(environment, "PYTHONUNBUFFERED=x=y"));
  EXPECT_TRUE(contains(environment, "MASTER_ADDR=elsewhere"));
  EXPECT_TRUE(contains(environment, "MASTER_PORT=7"));
  EXPECT_TRUE(contains(rank_environment({.hosts = {{"", 2}}}, {.usable_cores = 1}, {}),
                       "OMP_NUM_THREADS=1"));
}

TEST(RankEnvironment, RemovesWhatAnotherLauncherSaidOfTheLauncher) {
  const auto environment =
      rank_environment({.hosts = {{"node0", 2}}}, {.local_rank = 1, .master = "node0:2"},
                       {"RANK=7", "WORLD_SIZE=9", "LOCAL_RANK=7", "LOCAL_WORLD_SIZE=9",
                        "MASTER_ADDR=agent", "MASTER_PORT=1", "TORCHELASTIC_RUN_ID=none",
                        "TORCHELASTIC_USE_AGENT_STORE=True", "GROUP_RANK=3", "RANKING=kept"});
  for (const char* entry :
       {"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=node0"}) {
    EXPECT_TRUE(contains(environment, entry)) << entry;
  }
  EXPECT_FALSE(sets(environment, "GROUP_RANK"));
  EXPECT_FALSE(sets(environment, "TORCHELASTIC_RUN_ID"));
  EXPECT_FALSE(sets(environment, "TORCHELASTIC_USE_AGENT_STORE"));
  EXPECT_TRUE(sets(environment, "RANKING"));
}

TEST(RankEnvironment, TellsOnlyARankThatIsStartedAgainOfARestart) {
  const std::vector<std::string> inherited{"STRETTO_RESTART_COUNT=9"};
  EXPECT_FALSE(sets(rank_environment({}, {}, inherited), "STRETTO_RESTART_COUNT"));
  EXPECT_TRUE(contains(rank_environment({}, {.restart = 2}, inherited), "STRETTO_RESTART_COUNT=2"));
}

TEST(RankEnvironment, AStoreOfPyTorchIsAtThePortBehindTheOneWhereRanksMeet) {
  const LaunchOptions one_host;
  const LaunchOptions two_hosts{.hosts = {{"node0", 1}, {"node1", 1}}};
  const LaunchOptions named{.rendezvous = "[::1]:4000"};
  const LaunchOptions mpi{.starter = "mpirun"};
  EXPECT_EQ(master_place(one_host, {"127.0.0.1", 4242}, 5000), "127.0.0.1:5000");
  EXPECT_EQ(master_place(two_hosts, {"node0", 29600}, 0), "node0:29601");
  EXPECT_EQ(master_place(named, {"::1", 4000}, 0), "[::1]:4001");
  EXPECT_EQ(master_place(named, {"::1", 65535}, 0), "");
  EXPECT_EQ(master_place(mpi, {"127.0.0.1", 4242}, 5000), "");
}

}  // namespace
}  // namespace stretto::launch
