// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/execution/message_execution.h"

#include <gtest/gtest.h>

namespace stretto::execution {
namespace {

// An all_to_all of a few bytes needs hardly any scratch, but in every lane it has a message to and
// from each rank.
TEST(MessageExecution, CountsWhatItKeepsForEachMessage) {
  constexpr std::int32_t kRanks = 64;
  const OperationDescriptor operation{
      .collective = Collective::all_to_all, .dtype = DType::f32, .count = 64 * kRanks};
  const schedule::Algorithm& pairwise =
      *schedule::find_algorithm(operation.collective, schedule::Access::messages, "pairwise");
  const auto plan = std::make_shared<const Plan>(
      pairwise.build({.rank = 0, .rank_count = kRanks}),
      Plan::Options{.operation = operation, .segment_bytes_max = 64, .lanes = 4});
  Membership membership;
  transport::Endpoint::Parts parts;
  parts.links.resize(1);
  const auto endpoint = transport::Endpoint::create(std::move(parts)).or_throw();
  const MessageExecution execution(plan, membership, *endpoint);
  EXPECT_GT(execution.idle_bytes(), 4 * plan->schedule().steps.size() * sizeof(transport::Request));
}

}  // namespace
}  // namespace stretto::execution
