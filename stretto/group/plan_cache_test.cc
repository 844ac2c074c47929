// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/plan_cache.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/transport/endpoint.h"

namespace stretto::group {
namespace {

// The cache of one rank of 16, which sends nothing here.
class PlanCacheTest : public ::testing::Test {
 protected:
  // Adds a kind of operation that keeps a quarter of the bytes for all kinds, or a little less.
  PlanCache::Entry& add_large() {
    const OperationDescriptor operation{
        .collective = Collective::all_reduce, .dtype = DType::f32, .count = (4u << 20) + kinds_++};
    Plans plans = cache_.planner()->plan(operation, std::nullopt, "direct").or_throw();
    return cache_.add(operation, std::nullopt, std::move(plans));
  }
  // Takes an execution and keeps it again. Returns whether an idle one was there.
  bool use(PlanCache::Entry& entry) {
    const bool was_there = !entry.idle.empty();
    auto execution = cache_.take(entry);
    EXPECT_GT(execution->idle_bytes(), PlanCache::kIdleBytesMax / 5);
    EXPECT_LE(execution->idle_bytes(), PlanCache::kIdleBytesMax / 4);
    cache_.keep(entry, std::move(execution));
    return was_there;
  }

 protected:
  static std::unique_ptr<transport::Endpoint> make_endpoint() {
    transport::Endpoint::Parts parts;
    parts.links.resize(1);
    return transport::Endpoint::create(std::move(parts)).or_throw();
  }

  std::size_t kinds_ = 0;
  execution::Membership membership_;
  std::unique_ptr<transport::Endpoint> endpoint_ = make_endpoint();
  PlanCache cache_{membership_, *endpoint_, {.selector = {.rank_count = 16}}};
};

TEST_F(PlanCacheTest, WindowsAreReadAsWasMeasuredBeforeAndIsAfterwards) {
  for (const bool takes : {true, false}) {
    PlanCache cache(membership_, *endpoint_, {.selector = {.rank_count = 16}});
    cache.use_links({.memory = {.takes_lines = takes}});
    EXPECT_FALSE(cache.takes_lines()) << "there are no windows";
    cache.use_windows({});
    EXPECT_EQ(cache.takes_lines(), takes);
    cache.use_links({.memory = {.takes_lines = !takes}});
    EXPECT_EQ(cache.takes_lines(), !takes);
  }
}

TEST_F(PlanCacheTest, OfMoreKindsThanThereIsRoomForMostFindTheirScratch) {
  std::vector<PlanCache::Entry*> kinds;
  for (int i = 0; i < 5; ++i) kinds.push_back(&add_large());
  int missing = 0;
  for (int step = 0; step < 20; ++step) {
    std::size_t kept = 0;
    for (PlanCache::Entry* kind : kinds) missing += use(*kind) ? 0 : 1;
    for (PlanCache::Entry* kind : kinds) kept += kind->idle.size();
    EXPECT_EQ(kept, 4u);
  }
  EXPECT_LE(missing, 40) << "of 100";
}

TEST_F(PlanCacheTest, WhatIsNoLongerUsedMakesRoom) {
  for (int i = 0; i < 4; ++i) use(add_large());
  PlanCache::Entry& one = add_large();
  PlanCache::Entry& other = add_large();
  for (std::uint64_t i = 0; i <= PlanCache::kForgottenAfter / 2 + 4; ++i) {
    use(one);
    use(other);
  }
  EXPECT_TRUE(use(one));
  EXPECT_TRUE(use(other));
}

}  // namespace
}  // namespace stretto::group
