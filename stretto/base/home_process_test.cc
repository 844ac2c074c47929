// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/home_process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace stretto {
namespace {

TEST(HomeProcessTest, AForkedChildIsElsewhere) {
  const HomeProcess home;
  EXPECT_TRUE(home.is_here());
  const pid_t child = ::fork();
  if (child == 0) ::_exit(home.is_here() ? 1 : HomeProcess().is_here() ? 0 : 2);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(home.is_here());
}

}  // namespace
}  // namespace stretto
