// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/planner.h"

#include <gtest/gtest.h>

#include "stretto/execution/window.h"
#include "tests/support/expect_contains.h"

namespace stretto::group {
namespace {

// Makes a planner for hosts whose ranks share memory, with a network of these costs.
Planner planner_over(HostList hosts, double seconds_per_byte, double latency_seconds = 10e-6) {
  LinkModel links;
  links.network = {.latency_seconds = latency_seconds,
                   .seconds_per_byte = seconds_per_byte,
                   .reduce_seconds_per_byte = 0.02e-9};
  return Planner({.selector = {.rank_count = static_cast<int>(hosts.size()),
                               .hosts = std::move(hosts),
                               .links = links,
                               .has_teams = true}});
}
constexpr double kGigabit = 8e-9;

// A message that must be cleared first would wait behind everything that goes the other way.
TEST(Planner, MessagesBetweenHostsLeaveWithoutTheirReceive) {
  const Planner planner = planner_over({0, 0, 0, 1}, kGigabit);
  for (const char* algorithm : {"two_level_mapped", "two_level", "direct", "ring"}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64, DType::i8}) {
      const OperationDescriptor operation{
          .collective = Collective::all_reduce, .dtype = dtype, .count = 4 << 20};
      const Plans plans = planner.plan(operation, std::nullopt, algorithm).or_throw();
      const std::size_t elements = plans.messages->segment_bytes() / size_bytes(dtype);
      const std::size_t longest_bytes = elements * size_bytes(accumulation_dtype(dtype));
      EXPECT_LE(longest_bytes, transport::kEagerBytes) << algorithm << " of " << name(dtype);
      EXPECT_GT(longest_bytes, transport::kEagerBytes / 2) << algorithm << " of " << name(dtype);
    }
  }
}

// A collective without partials sends elements of its own dtype.
TEST(Planner, SegmentsThatAreNotReducedAreAsLongInAnyDtype) {
  const Planner planner = planner_over({0, 0, 1, 1}, kGigabit);
  for (const Collective collective : {Collective::all_gather, Collective::broadcast}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      OperationDescriptor operation{.collective = collective, .dtype = dtype, .count = 4 << 20};
      if (has_root(collective)) operation.root = 0;
      const Plans plans = planner.plan(operation, std::nullopt, "two_level_mapped").or_throw();
      EXPECT_GT(plans.messages->segment_bytes(), transport::kEagerBytes * 9 / 10) << name(dtype);
    }
  }
}

// A plan is cut into the segments by which it has been priced.
TEST(Planner, CutsAsTheSelectorSays) {
  const Selector::Setting setting{
      .rank_count = 8, .hosts = {0, 0, 0, 0, 0, 1, 1, 1}, .has_teams = true};
  const Selector selector(setting);
  const Planner planner({.selector = setting});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const OperationDescriptor operation{
        .collective = Collective::all_reduce, .dtype = dtype, .count = 4 << 20};
    for (const auto& candidate : selector.candidates(operation, true)) {
      const std::string_view name = candidate.algorithm->name;
      const Plans plans = planner.plan(operation, std::nullopt, name).or_throw();
      const std::size_t bytes = selector.segment_bytes(*candidate.algorithm, operation);
      EXPECT_LE(plans.messages->segment_bytes(), bytes) << name;
      EXPECT_GT(plans.messages->segment_bytes(), bytes - bytes / 8) << name;
    }
  }
}

// At 1 Gbit/s and 16 ms each way, 4 MB are under way.
TEST(Planner, LanesHoldWhatALongNetworkHolds) {
  const Planner planner = planner_over({0, 0, 1, 1}, kGigabit, 16e-3);
  const OperationDescriptor operation{
      .collective = Collective::all_reduce, .dtype = DType::f32, .count = 4 << 20};
  const auto plan = planner.plan(operation, std::nullopt, "two_level_mapped").or_throw().messages;
  // Each half of a segment's two chunks leaves a host as a partial, and as a result.
  const double chunks = plan->schedule().chunk_count;
  const double under_way = static_cast<double>(plan->lanes() * plan->segment_bytes()) * chunks;
  EXPECT_GE(under_way, 4e6);
  EXPECT_LE(plan->lanes(), execution::Window::kLanes);
  const Explanation explanation = planner.explain(operation, "two_level_mapped");
  EXPECT_EQ(explanation.lanes, plan->lanes());
  EXPECT_EQ(explanation.segment_bytes, plan->segment_bytes());
  // This algorithm has lanes that hold one message each.
  const auto whole =
      planner.plan(operation, std::nullopt, "recursive_doubling").or_throw().messages;
  EXPECT_GT(static_cast<double>(whole->lanes() * whole->segment_bytes()), 3.9e6);
}

// For a fast, short network, the staged bytes stay in the caches. A slow or a long network has more
// bytes under way.
TEST(Planner, ForAFastNetworkLittleIsStagedAtATime) {
  const OperationDescriptor operation{
      .collective = Collective::all_reduce, .dtype = DType::f32, .count = 4 << 20};
  const auto plan_over = [&](double seconds_per_byte, double latency_seconds) {
    const Planner planner = planner_over({0, 0, 1, 1}, seconds_per_byte, latency_seconds);
    auto plan = planner.plan(operation, std::nullopt, "two_level_mapped").or_throw().messages;
    EXPECT_LE(plan->lanes(), planner.team_lanes());
    return plan;
  };
  const auto fast = plan_over(kGigabit / 10, 10e-6);
  const std::size_t staged_bytes = fast->lanes() * schedule::kScratchSets * fast->shared_bytes();
  EXPECT_LE(staged_bytes, 1024u * 1024);
  EXPECT_GT(staged_bytes, 512u * 1024);
  const auto slow = plan_over(kGigabit, 10e-6);
  EXPECT_GE(slow->lanes() * slow->segment_bytes(), 4 * fast->lanes() * fast->segment_bytes());
  const auto distant = plan_over(kGigabit / 10, 5e-3);
  EXPECT_GE(distant->lanes() * distant->segment_bytes(), 8 * fast->lanes() * fast->segment_bytes());
}

// If there are too many ranks for a proof, the planner says so.
TEST(Planner, HasSchedulesProvedBeforeTheyRun) {
  const OperationDescriptor operation{
      .collective = Collective::all_reduce, .dtype = DType::f32, .count = 1};
  const auto said_of = [&](int ranks, schedule::Verification verification) {
    const Planner planner({.selector = {.rank_count = ranks}, .verification = verification});
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(planner.plan(operation, std::nullopt, "ring").ok());
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said_of(200, schedule::Verification::never), "");
  expect_contains(said_of(200, schedule::Verification::automatic),
                  "all_reduce by ring runs on 200 ranks without a proof");
}

struct AnyLibrary final : CollectiveLibrary {
  const char* name() const override { return "any library"; }
  LibraryFailure failure() const override { return {}; }
  bool can_run(const OperationDescriptor&) const override { return true; }
  bool gives_buffers_back() const override { return true; }
  int start(const LibraryCall&) override { return 0; }
  bool has_ended(int) override { return true; }
  void abandon() override {}
};

// A default algorithm may exist for other collectives only.
TEST(Planner, ExplainsAsIfNobodyHadNamedWhatCannotBeUsed) {
  const OperationDescriptor operation{
      .collective = Collective::broadcast, .dtype = DType::f32, .root = 0, .count = 1000};
  const Planner planner = planner_over({0, 1}, kGigabit);
  EXPECT_EQ(planner.explain(operation, "knomial").reason, "it was asked for");
  EXPECT_EQ(planner.explain(operation, "ring").reason, planner.explain(operation, "").reason);
  const AnyLibrary library;
  const Planner of_library({.selector = {.rank_count = 2}, .library = &library});
  EXPECT_EQ(of_library.explain(operation, "ring").algorithm, library.name());
}

}  // namespace
}  // namespace stretto::group
