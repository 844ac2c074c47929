// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/slurm.h"

#include <gtest/gtest.h>

namespace stretto::job {
namespace {

TEST(Slurm, FindsTheFirstHostOfAList) {
  const auto first = [](const char* list) { return first_slurm_host(list).or_throw(); };
  EXPECT_EQ(first("node7"), "node7");
  EXPECT_EQ(first("node7,node1"), "node7");
  EXPECT_EQ(first("node[007-129,200]"), "node007");
  EXPECT_EQ(first("node[12,3-4],login"), "node12");
  EXPECT_EQ(first("rack[2-3]-node[05,07]"), "rack2-node05");
  EXPECT_EQ(first("n[1-2].cluster.example"), "n1.cluster.example");
  EXPECT_EQ(first("10.0.4.7"), "10.0.4.7");
}

TEST(Slurm, RefusesWhatIsNoList) {
  for (const char* bad : {"", ",", "node[", "node[]", "node[,1]", "node[1", "node]1", "a b"}) {
    const Result<std::string> host = first_slurm_host(bad);
    ASSERT_FALSE(host.ok()) << bad;
    EXPECT_EQ(host.status().code(), StatusCode::invalid_argument);
  }
}

}  // namespace
}  // namespace stretto::job
