// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/environment.h"

#include <cstdlib>

#include <gtest/gtest.h>

namespace stretto {
namespace {

constexpr const char* kVariable = "STRETTO_ENVIRONMENT_TEST";

TEST(EnvironmentTest, ReadsTheProcessEnvironment) {
  ::setenv(kVariable, "some value", 1);
  EXPECT_EQ(process_environment().get(kVariable), "some value");
  ::unsetenv(kVariable);
  EXPECT_EQ(process_environment().get(kVariable), std::nullopt);
}

TEST(EnvironmentTest, EmptyCountsAsNotSet) {
  ::setenv(kVariable, "", 1);
  EXPECT_EQ(process_environment().get(kVariable), std::nullopt);
  ::unsetenv(kVariable);
}

}  // namespace
}  // namespace stretto
