// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Executions on mapped memory whose kernels run on a queue that is late, like a device's stream.
// Results are those of the host's queue, since no rank is told of values before they are written.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "stretto/execution/mapped_execution.h"
#include "stretto/group/planner.h"
#include "stretto/transport/loopback/world.h"
#include "tests/support/problem.h"

namespace stretto::simulation {
namespace {

using execution::BoundStep;
using execution::KernelQueue;
using execution::Window;
using execution::Windows;

// Does nothing until it has been asked several times whether it is done, and then does all.
class LateQueue final : public KernelQueue {
 public:
  Status run(const BoundStep& step, std::size_t count) override {
    begun_.emplace_back(step, count);
    asked_ = 0;
    return {};
  }
  bool is_done() override {
    if (begun_.empty()) return true;
    if (++asked_ < kAsked) {
      ++refused_;
      return false;
    }
    for (const auto& [step, count] : begun_) {
      EXPECT_TRUE(execution::host_queue().run(step, count).ok());
    }
    begun_.clear();
    return true;
  }
  int refused() const { return refused_; }

 private:
  static constexpr int kAsked = 5;
  std::vector<std::pair<BoundStep, std::size_t>> begun_;
  int asked_ = 0;
  int refused_ = 0;
};

enum class Way { staged, registered, staged_on_host_queue };

// The ranks of some all-reduces, all on one thread.
class Ranks {
 public:
  Ranks(int size, Way way, std::size_t count)
      : operation_({.collective = Collective::all_reduce,
                    .op = ReduceOp::sum,
                    .dtype = DType::f32,
                    .count = count}),
        oracle_({.dtype = DType::f32, .ranks = size, .count = count}),
        world_(transport::loopback::make_world({.ranks = size}).or_throw()),
        queues_(static_cast<std::size_t>(size)) {
    for (int r = 0; r < size; ++r) memberships_.push_back({.group = 1, .rank = r, .members = {}});
    for (auto& membership : memberships_) {
      for (int r = 0; r < size; ++r) membership.members.push_back(r);
    }
    for (auto& endpoint : world_) {
      const auto& input = oracle_.input_of(endpoint->rank().value());
      buffers_.push_back(endpoint->allocate(2 * input.size()).or_throw());
      windows_of_.push_back(endpoint->allocate(Window::bytes(true)).or_throw());
      std::ranges::copy(input, buffers_.back().bytes.begin());
      private_.emplace_back(buffers_.back().bytes.begin(), buffers_.back().bytes.end());
    }
    windows_.resize(world_.size());
    for (std::size_t r = 0; r < world_.size(); ++r) make_execution(r, way);
  }
  ~Ranks() {
    const Status over(StatusCode::aborted, "the test is over");
    for (auto& endpoint : world_) endpoint->forget(1, memberships_[0].members, over);
  }

  // Expects the right end on all ranks, in the `sequence`th operation.
  void expect_right(std::uint32_t sequence, Way way) {
    const std::size_t bytes = oracle_.input_of(0).size();
    const auto own = [&](std::size_t r) {
      return way == Way::registered ? buffers_[r].bytes : ByteSpan(private_[r]);
    };
    for (std::size_t r = 0; r < world_.size(); ++r) {
      std::ranges::fill(own(r).subspan(bytes), std::byte{0});
      auto turn = turn_of(r);
      executions_[r]->start({.operation = operation_,
                             .input = {.data = own(r).data()},
                             .output = {.data = own(r).data() + bytes},
                             .sequence = sequence},
                            turn);
    }
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    while (!all_ended() && !deadline.passed()) {
      for (std::size_t r = 0; r < world_.size(); ++r) {
        world_[r]->progress();
        auto turn = turn_of(r);
        executions_[r]->advance(turn);
      }
    }
    const Bytes expected = oracle_.expected_of(0);
    for (std::size_t r = 0; r < world_.size(); ++r) {
      ASSERT_TRUE(executions_[r]->ended()) << r;
      ASSERT_TRUE(executions_[r]->status().ok()) << executions_[r]->status().message();
      const auto output = own(r).subspan(bytes);
      EXPECT_TRUE(std::ranges::equal(output, expected)) << r;
    }
  }
  // Has ranks take, or leave, the lines of what others have staged, whatever the processor is.
  void take_lines(bool takes) {
    for (Windows& windows : windows_) windows.takes_lines = takes;
  }
  // Whether an execution has waited for its queue.
  bool has_waited() const {
    return std::ranges::any_of(queues_, [](const auto& q) { return q.refused() > 0; });
  }
  bool has_staged() const {
    return std::ranges::any_of(windows_, [](const Windows& w) { return w.staging_turn > 0; });
  }

 private:
  execution::Turn turn_of(std::size_t r) { return {*world_[r], execution::kUnlimited}; }
  bool all_ended() const {
    return std::ranges::all_of(executions_, [](const auto& e) { return e->ended(); });
  }
  void make_execution(std::size_t r, Way way) {
    const group::Planner planner(
        {.rank = static_cast<int>(r),
         .selector = {.rank_count = static_cast<int>(world_.size()), .hosts = {}, .links = {}},
         .is_one_team = true});
    group::Plans plans = planner.plan(operation_, std::nullopt, {}).or_throw();
    for (auto& region : windows_of_) {
      windows_[r].of.push_back(reinterpret_cast<Window*>(region.bytes.data()));
      windows_[r].team.push_back(static_cast<int>(windows_[r].team.size()));
    }
    executions_.push_back(std::make_unique<execution::MappedExecution>(
        execution::MappedExecution::Plans{.direct = plans.direct, .staged = plans.staged},
        memberships_[r], windows_[r], *world_[r],
        way == Way::staged_on_host_queue ? execution::host_queue() : queues_[r]));
  }

  OperationDescriptor operation_;
  testing::Oracle oracle_;
  std::vector<std::unique_ptr<transport::Endpoint>> world_;
  std::vector<LateQueue> queues_;
  std::vector<execution::Membership> memberships_;
  std::vector<transport::Region> buffers_;  // Input and output.
  std::vector<transport::Region> windows_of_;
  std::vector<Bytes> private_;
  std::vector<Windows> windows_;
  std::vector<std::unique_ptr<execution::Execution>> executions_;
};

class LateKernels : public ::testing::TestWithParam<std::tuple<Way, int, std::size_t>> {};
INSTANTIATE_TEST_SUITE_P(
    , LateKernels,
    ::testing::Combine(::testing::Values(Way::staged, Way::registered), ::testing::Values(2, 3, 5),
                       ::testing::Values(std::size_t{2}, std::size_t{1000}, std::size_t{300'001})));

TEST_P(LateKernels, GiveTheSameBits) {
  const auto [way, size, count] = GetParam();
  Ranks ranks(size, way, count);
  for (const std::uint32_t sequence : {1u, 2u, 3u}) ranks.expect_right(sequence, way);
  EXPECT_TRUE(ranks.has_waited());
}

TEST(TakenLines, HoldWhatTheyHaveHeld) {
  for (const int size : {2, 3, 5}) {
    for (const std::size_t count : {std::size_t{30'000}, std::size_t{300'001}}) {
      Ranks ranks(size, Way::staged_on_host_queue, count);
      for (const std::uint32_t sequence : {1u, 2u, 3u, 4u}) {
        ranks.take_lines(sequence % 2 == 1);
        ranks.expect_right(sequence, Way::staged_on_host_queue);
      }
    }
  }
}

TEST(HostQueue, CopiesTimesAFactor) {
  const std::vector<float> from = {1, -2, 3};
  std::vector<float> to(3), same(3);
  const ConstView view = const_view_of(std::span(from));
  KernelQueue& queue = execution::host_queue();
  ASSERT_TRUE(copy(queue, view, reinterpret_cast<std::byte*>(to.data()), 0.5).ok());
  EXPECT_EQ(to, (std::vector<float>{0.5, -1, 1.5}));
  ASSERT_TRUE(copy(queue, view, reinterpret_cast<std::byte*>(same.data())).ok());
  EXPECT_EQ(same, from);
}

// 24 bytes of a rank fit into its post: then InlineSteps carry out the plan, and nothing is staged.
TEST(InlineSteps, AreUsedForWhatFitsIntoThePosts) {
  for (const auto& [count, stages] :
       {std::pair(2u, false), std::pair(6u, false), std::pair(7u, true)}) {
    Ranks ranks(3, Way::staged_on_host_queue, count);
    for (const std::uint32_t sequence : {1u, 2u, 3u}) {
      ranks.expect_right(sequence, Way::staged_on_host_queue);
    }
    EXPECT_EQ(ranks.has_staged(), stages) << count;
  }
}

}  // namespace
}  // namespace stretto::simulation
