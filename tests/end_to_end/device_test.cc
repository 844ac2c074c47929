// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Processes share memory of devices; test doubles stand in for these (tests/support/fake_nccl).

#include "tests/end_to_end/tool.h"
#include "tests/support/expect_contains.h"

namespace stretto {
namespace {

using testing::Arguments;
using testing::Tool;
using testing::Variables;

const std::string kDeviceProgram = STRETTO_BIN_DIR "/device_rank_program";
const std::string kDeviceDouble = STRETTO_BIN_DIR "/libfake_nccl.so";

Arguments device_job(int ranks, const std::string& mode) {
  return {"run", "-n", std::to_string(ranks), "--", kDeviceProgram, mode};
}

Variables device_variables(bool share_a_device) {
  Variables all = {{"STRETTO_BACKEND", "cuda"},
                   {"STRETTO_CUDA_DRIVER", kDeviceDouble},
                   {"STRETTO_CUDA_KERNELS", kDeviceDouble}};
  if (share_a_device) all["STRETTO_DEVICE"] = "0";
  return all;
}

TEST(SharedDevices, GiveTheBitsOfTheHost) {
  for (const bool share_a_device : {true, false}) {
    Tool tool(device_job(2, "right"), device_variables(share_a_device));
    EXPECT_EQ(tool.status(), 0);
    const std::string said = tool.output().finish();
    for (const char* line : {"[0] right\n", "[1] right\n"}) expect_contains(said, line);
  }
}

TEST(SharedDevices, DeathIsToldWhenNoKernelUsesTheBuffersAnyMore) {
  Tool tool(device_job(3, "late"), device_variables(false));
  EXPECT_EQ(tool.status(), 128 + SIGKILL);
  const std::string said = tool.output().finish();
  expect_contains(said, "[0] waits for its kernel");
  expect_contains(said, "[2] failed ");
  expect_contains(said, "[0] failed ");
  expect_contains(said, "all_reduce(sum f32 [1000]) #2");
  expect_contains(said, "lost rank 1");
}

}  // namespace
}  // namespace stretto
