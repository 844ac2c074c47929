// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/placement.h"

#include <vector>

#include <gtest/gtest.h>

namespace stretto::job {
namespace {

using Hosts = std::vector<std::int32_t>;

TEST(Placement, IsFoundFaultWithWhereNoHostCanCombineAnything) {
  for (const Hosts& hosts : {Hosts{0, 1, 0, 1}, Hosts{0, 1, 2, 0, 1, 2}, Hosts{0, 1, 0},
                             Hosts{0, 1, 2, 3, 0, 1, 2, 3}}) {
    EXPECT_NE(placement_advice(hosts, "stretto"), "") << hosts.size() << " ranks";
    EXPECT_NE(placement_advice(hosts, "cuda"), "") << hosts.size() << " ranks";
    EXPECT_EQ(placement_advice(hosts, "mpi"), "") << "it combines in its own order";
    EXPECT_EQ(placement_advice(hosts, "nccl"), "") << "it combines in its own order";
  }
  for (const Hosts& hosts : {Hosts{}, Hosts{0}, Hosts{0, 0}, Hosts{0, 1, 2}, Hosts{0, 0, 2, 2},
                             Hosts{0, 1, 1}, Hosts{0, 0, 1, 1, 0, 0, 1, 1}}) {
    EXPECT_EQ(placement_advice(hosts, "stretto"), "") << hosts.size() << " ranks";
  }
}

}  // namespace
}  // namespace stretto::job
