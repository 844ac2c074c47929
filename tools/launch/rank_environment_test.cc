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
  const auto environment = rank_environment(
      options, {.local_rank = 2, .rendezvous = "node0:29600", .status_fd = 9, .usable_cores = 10},
      {"HOME=/home/me", "STRETTO_RANK=99"});
  for (const char* entry :
       {"HOME=/home/me", "STRETTO_RANK=6", "STRETTO_SIZE=8", "STRETTO_LOCAL_RANK=2",
        "STRETTO_LOCAL_SIZE=4", "STRETTO_RENDEZVOUS=node0:29600", "STRETTO_STATUS_FD=9",
        "OMP_NUM_THREADS=2", "PYTHONUNBUFFERED=1"}) {
    EXPECT_TRUE(contains(environment, entry)) << entry;
  }
  EXPECT_TRUE(contains(environment, "STRETTO_JOB_KEY=" + options.key.hexadecimal()));
}

TEST(RankEnvironment, KeepsWhatTheUserHasChosen) {
  const auto environment = rank_environment({.hosts = {{"", 2}}}, {.usable_cores = 1},
                                            {"OMP_NUM_THREADS=7", "PYTHONUNBUFFERED=x=y"});
  EXPECT_TRUE(contains(environment, "OMP_NUM_THREADS=7"));
  EXPECT_TRUE(contains(environment, "PYTHONUNBUFFERED=x=y"));
  EXPECT_TRUE(contains(rank_environment({.hosts = {{"", 2}}}, {.usable_cores = 1}, {}),
                       "OMP_NUM_THREADS=1"));
}

TEST(RankEnvironment, RemovesWhatAnotherLauncherSaidOfTheLauncher) {
  const auto environment = rank_environment(
      {}, {}, {"RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1", "RANKING=kept"});
  for (const char* variable : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    EXPECT_FALSE(sets(environment, variable)) << variable;
  }
  EXPECT_TRUE(sets(environment, "RANKING"));
}

}  // namespace
}  // namespace stretto::launch
