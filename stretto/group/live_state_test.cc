// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/live_state.h"

#include <gtest/gtest.h>

#include <thread>

namespace stretto::group {
namespace {

using std::chrono::milliseconds;

TEST(WaitTime, GrowsWhileAtLeastOneThreadWaits) {
  WaitTime waited;
  EXPECT_EQ(waited.total(), Duration::zero());
  waited.begin();
  waited.begin();
  waited.end();
  std::this_thread::sleep_for(milliseconds(1));
  const Duration amid = waited.total();
  EXPECT_GE(amid, milliseconds(1)) << "the other still waits";
  waited.end();
  const Duration total = waited.total();
  EXPECT_GE(total, amid) << "it has shrunk";
  std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(waited.total(), total);
}

}  // namespace
}  // namespace stretto::group
