// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/thread.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cerrno>
#include <stdexcept>

#include "tests/support/forbid.h"

namespace stretto {
namespace {

TEST(Thread, RunsAFunction) {
  int result = 0;
  start_thread("test", [&] { result = 42; }).or_throw().join();
  EXPECT_EQ(result, 42);
}

TEST(Thread, AnExceptionEndsItAndNotTheProcess) {
  ::testing::internal::CaptureStderr();
  start_thread("test", [] { throw std::runtime_error("no luck"); }).or_throw().join();
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "the thread test has ended: no luck",
                      ::testing::internal::GetCapturedStderr());
}

TEST(Thread, SaysWhichLimitsToLookAtWhereThereIsNone) {
  const pid_t child = ::fork();
  if (child == 0) {
    stretto::testing::forbid({SYS_clone, SYS_clone3}, EAGAIN);
    const Result<std::thread> thread = start_thread("test", [] {});
    const std::string message(thread.status().message());
    const bool said = thread.status().code() == StatusCode::system &&
                      message.find(
                          "the thread test could not be started: Resource temporarily "
                          "unavailable. Look at the limits on threads") == 0;
    ::_exit(said ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace stretto
