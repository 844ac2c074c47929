// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/status.h"

#include <cerrno>
#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include "stretto/base/check.h"
#include "stretto/base/error.h"
#include "tests/support/expect_contains.h"
#include "tests/support/failures.h"

namespace stretto {
namespace {

TEST(StatusTest, SuccessIsOnePointerWideAndSaysNothing) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::ok);
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(status.rank(), std::nullopt);
  EXPECT_NO_THROW(status.or_throw());
  EXPECT_LE(sizeof(Status), sizeof(std::shared_ptr<void>));
}

TEST(StatusTest, ACopySharesTheText) {
  const Status first(StatusCode::peer_lost, "rank 3 died", Rank(3));
  const Status copy = first;  // NOLINT(performance-unnecessary-copy-initialization)
  EXPECT_EQ(copy.message().data(), first.message().data());
  EXPECT_EQ(copy.rank(), Rank(3));
}

TEST(StatusTest, ContextStandsBeforeTheMessageAndKeepsCodeAndRank) {
  const Status status(StatusCode::timeout, "no answer", Rank(2));
  const Status longer = status.with_context("while joining");
  EXPECT_EQ(longer.message(), "while joining: no answer");
  EXPECT_EQ(longer.code(), StatusCode::timeout);
  EXPECT_EQ(longer.rank(), Rank(2));
  EXPECT_TRUE(Status().with_context("while joining").ok());
}

template <class Expected>
void expect_throws(StatusCode code) {
  const Status status(code, "what happened", Rank(1));
  try {
    status.or_throw();
    ADD_FAILURE() << name(code) << " did not throw";
  } catch (const Expected& error) {
    EXPECT_STREQ(error.what(), "what happened");
    EXPECT_EQ(error.status().code(), code);
    EXPECT_EQ(error.status().rank(), Rank(1));
  } catch (const Error& error) {
    ADD_FAILURE() << name(code) << " threw another type";
  }
}

TEST(StatusTest, EveryCodeHasItsExceptionType) {
  expect_throws<InvalidArgument>(StatusCode::invalid_argument);
  expect_throws<PeerLost>(StatusCode::peer_lost);
  expect_throws<Timeout>(StatusCode::timeout);
  expect_throws<Mismatch>(StatusCode::mismatch);
  expect_throws<Refused>(StatusCode::refused);
  expect_throws<Aborted>(StatusCode::aborted);
  expect_throws<ProtocolError>(StatusCode::protocol);
  expect_throws<SystemError>(StatusCode::system);
  expect_throws<OutOfMemory>(StatusCode::out_of_memory);
  expect_throws<InternalError>(StatusCode::internal);
}

TEST(StatusTest, SystemStatusNamesTheCallAndTheReason) {
  errno = EADDRINUSE;
  const Status status = system_status("bind");
  EXPECT_EQ(status.code(), StatusCode::system);
  EXPECT_EQ(status.message(), "bind: Address already in use");
  EXPECT_EQ(system_status("open", ENOENT).message(), "open: No such file or directory");
}

TEST(StatusTest, ReturnIfErrorLeavesOnFailureOnly) {
  const auto run = [](const Status& first) -> Status {
    STRETTO_RETURN_IF_ERROR(first);
    return status_of(StatusCode::internal, "reached {}", "the end");
  };
  EXPECT_EQ(run(Status(StatusCode::timeout, "late")).message(), "late");
  EXPECT_EQ(run(Status()).message(), "reached the end");
}

TEST(ResultTest, HoldsAValueThatCanBeMovedOut) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(7);
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result.status().ok());
  EXPECT_EQ(**result, 7);
  const std::unique_ptr<int> value = std::move(result).or_throw();
  EXPECT_EQ(*value, 7);
}

TEST(ResultTest, HoldsAFailureThatIsThrown) {
  Result<int> result = status_of(StatusCode::refused, "wrong key");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().message(), "wrong key");
  EXPECT_THROW(std::move(result).or_throw(), Refused);
}

TEST(CheckTest, AFailedCheckNamesExpressionDetailsAndPlace) {
  const int chunk = 5;
  const std::string text = testing::error_of<InternalError>(
      [&] { STRETTO_CHECK(chunk < 4, "chunk {} of {}", chunk, 4); });
  expect_contains(text, "chunk < 4 does not hold (chunk 5 of 4) at ");
  expect_contains(text, "status_test.cc:");
}

TEST(CheckTest, ACheckThatHoldsDoesNotFormatItsDetails) {
  int formatted = 0;
  const auto count = [&formatted] { return ++formatted; };
  STRETTO_CHECK(true, "{}", count());
  EXPECT_EQ(formatted, 0);
}

}  // namespace
}  // namespace stretto
