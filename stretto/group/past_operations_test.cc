// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/past_operations.h"

#include <gtest/gtest.h>

namespace stretto::group {
namespace {

OperationDescriptor all_reduce(std::uint64_t count) {
  return {.collective = Collective::all_reduce, .dtype = DType::f32, .count = count};
}

OperationDescriptor found(const PastOperations& past, std::uint32_t sequence) {
  const OperationDescriptor* operation = past.find(sequence);
  return operation == nullptr ? OperationDescriptor() : *operation;
}

constexpr auto kNoneRuns = [](std::uint32_t) { return false; };

TEST(PastOperations, ManyEqualOnesAreRememberedFromTheFirst) {
  PastOperations past;
  past.add(1, all_reduce(8), kNoneRuns);
  for (std::uint32_t s = 2; s < 100'000; ++s) past.add(s, all_reduce(4), kNoneRuns);
  EXPECT_EQ(found(past, 1), all_reduce(8));
  EXPECT_EQ(found(past, 2), all_reduce(4));
  EXPECT_EQ(found(past, 99'999), all_reduce(4));
  EXPECT_EQ(past.find(100'000), nullptr);
  EXPECT_EQ(past.find(0), nullptr);
}

TEST(PastOperations, DifferentOnesAreForgottenInTheEnd) {
  PastOperations past;
  for (std::uint32_t s = 1; s <= 100; ++s) past.add(s, all_reduce(s), kNoneRuns);
  EXPECT_EQ(past.find(1), nullptr);
  EXPECT_EQ(found(past, 80), all_reduce(80));
  past.clear();
  EXPECT_EQ(past.find(80), nullptr);
}

TEST(PastOperations, WhatHasNotBeenHereIsNotTakenForWhatWasAroundIt) {
  PastOperations past;
  past.add(1, all_reduce(4), kNoneRuns);
  past.add(3, all_reduce(4), kNoneRuns);
  EXPECT_EQ(past.find(2), nullptr);
}

TEST(PastOperations, OperationsMayEndInAnotherOrder) {
  PastOperations past;
  past.add(1, all_reduce(4), kNoneRuns);
  const auto second_runs = [](std::uint32_t s) { return s == 2; };
  past.add(3, all_reduce(4), second_runs);
  past.add(2, all_reduce(8), kNoneRuns);
  past.add(4, all_reduce(4), kNoneRuns);
  EXPECT_EQ(found(past, 1), all_reduce(4));
  EXPECT_EQ(found(past, 2), all_reduce(8));
  EXPECT_EQ(found(past, 3), all_reduce(4));
  EXPECT_EQ(found(past, 4), all_reduce(4));
  past.add(6, all_reduce(4), [](std::uint32_t s) { return s == 5; });
  past.add(5, all_reduce(4), kNoneRuns);
  EXPECT_EQ(found(past, 5), all_reduce(4));
}

}  // namespace
}  // namespace stretto::group
