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
    EXPECT_NE(placement_advice(hosts), "") << hosts.size() << " ranks";
  }
  for (const Hosts& hosts : {Hosts{}, Hosts{0}, Hosts{0, 0}, Hosts{0, 1, 2}, Hosts{0, 0, 2, 2},
                             Hosts{0, 1, 1}, Hosts{0, 0, 1, 1, 0, 0, 1, 1}}) {
    EXPECT_EQ(placement_advice(hosts), "") << hosts.size() << " ranks";
  }
}

}  // namespace
}  // namespace stretto::job
