// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// NCCL as it is installed, as far as it can be asked without a device.

#include <gtest/gtest.h>

#include "stretto/nccl/load.h"
#include "stretto/nccl/versions.h"
#include "tests/nccl/double_ranks.h"
#include "tests/support/failures.h"

namespace stretto::nccl {
namespace {

using stretto::testing::expect_contains;

TEST(NcclLoading, RealNcclHasAllThatIsUsedAndKnowsItsVersion) {
  const auto loaded = load_nccl(nccl_files(process_environment()));
  if (!loaded.ok()) GTEST_SKIP() << "skipped: no NCCL (" << loaded.status().message() << ")";
  const Nccl& nccl = *loaded.value();
  EXPECT_GE(nccl.version, kOldestVersion);
  EXPECT_STREQ(nccl.call.get_error_string(kSuccess), "no error");
  // A group with nothing in it needs no device.
  EXPECT_EQ(nccl.call.group_start(), kSuccess);
  EXPECT_EQ(nccl.call.group_end(), kSuccess);
}

TEST(NcclLoading, SaysWhereItCouldBe) {
  const auto missing = load_nccl({"/nowhere/libnccl.so.2"});
  ASSERT_FALSE(missing.ok());
  expect_contains(missing.status().message(), "/nowhere/libnccl.so.2");
  expect_contains(missing.status().message(), "nvidia-nccl-cu13");
  expect_contains(missing.status().message(), "STRETTO_NCCL_LIBRARY");
  const auto other = load_nccl({"libm.so.6"});
  expect_contains(other.status().message(), "libm.so.6 has no function ncclGetVersion");
  const auto driver = Driver::open("/nowhere/libcuda.so.1", 0);
  expect_contains(driver.status().message(), "NCCL needs a GPU");
}

TEST(NcclLoading, DeviceThatIsNotThereIsNamed) {
  const auto driver = Driver::open(stretto::testing::Double::file(), 8);
  expect_contains(driver.status().message(), "device 8 is not one of the 8");
}

TEST(NcclLoading, ConfigurationIsWhatTheVersionReads) {
  EXPECT_EQ(make_config(22005, "a").size_bytes, 48u);
  EXPECT_EQ(make_config(22605, "a").comm_name, nullptr);
  EXPECT_EQ(make_config(22703, "a").size_bytes, 72u);
  EXPECT_STREQ(make_config(23007, "a").comm_name, "a");
  EXPECT_EQ(make_config(23007, "a").blocking, 0);
  EXPECT_EQ(version_text(22005), "2.20.5");
}

}  // namespace
}  // namespace stretto::nccl
