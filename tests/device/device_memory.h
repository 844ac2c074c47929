// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <gtest/gtest.h>

#include "tests/support/double_ranks.h"

namespace stretto::testing {

// Ranks with memory of the double's devices, none of which may be left at the end of a test.
class DeviceMemory : public WithDouble {
 protected:
  void TearDown() override {
    const fake_nccl::Control control = Double::get().control();
    EXPECT_EQ(control.mapped_places, 0);
    EXPECT_EQ(control.reserved_places, 0);
    EXPECT_EQ(control.exported_bytes, 0u);
    EXPECT_EQ(control.made_blocks, 0);
  }
  static DoubleRanks make(int size) { return DoubleRanks({.size = size, .maps_devices = true}); }
};

// Returns where the host reaches the elements.
inline float* reach(const Buffer<float>& buffer) {
  return reinterpret_cast<float*>(Double::get().reach(buffer.data()));
}

}  // namespace stretto::testing
