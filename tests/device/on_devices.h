// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "tests/device/placed_model.h"
#include "tests/support/double_ranks.h"

namespace stretto::testing {

// What runs the operations of ranks whose tensors are on a double's devices: stretto's schedules on
// host memory, or, on the device, the double of NCCL or stretto's kernels.
enum class By { schedules, nccl, kernels };

inline std::string name_of(const ::testing::TestParamInfo<By>& by) {
  if (by.param == By::schedules) return "schedules";
  return by.param == By::nccl ? "nccl" : "kernels";
}
inline auto all_ways() { return ::testing::Values(By::schedules, By::nccl, By::kernels); }

// Resets the doubles of a device and of its libraries.
class OnDoubles : public WithDouble {
 protected:
  void SetUp() override { load_fake_device(); }
  void TearDown() override {
    const fake_nccl::Control control = Double::get().control();
    EXPECT_EQ(control.made_blocks, 0);
    EXPECT_EQ(control.mapped_places, 0);
    EXPECT_EQ(control.exported_bytes, 0u);
    EXPECT_EQ(control.locked_pieces, 0);
  }
};

class OnDevices : public OnDoubles, public ::testing::WithParamInterface<By> {
 protected:
  // Not for By::schedules. Ranks have progress threads, since machines with GPUs have more cores
  // than ranks.
  static DoubleRanks make(int size = kRanks) {
    return DoubleRanks({.size = size,
                        .maps_devices = GetParam() == By::kernels,
                        .progress_thread = ProgressThread::always});
  }
  static void on_ranks(int size, const std::function<void(Communicator&)>& body) {
    if (GetParam() == By::schedules) return run_ranks(size, body);
    make(size).on_all(body);
  }
};

}  // namespace stretto::testing
