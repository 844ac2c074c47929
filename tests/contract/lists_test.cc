// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Lists of buffers, uneven shares and factors, on a group whose ranks are not in the job's order.

#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "tests/contract/rank_communicators.h"

namespace stretto::testing {
namespace {

constexpr int kSize = 3;

class Lists : public OnEveryBackend {
 protected:
  // `body` gets the group and this rank's weight in it: 1, 2 or 4.
  static void on_group(const std::function<void(Communicator&, int weight)>& body) {
    auto ranks = make(kSize + 1);
    on_all(ranks, [&](Communicator& comm) {
      auto group = comm.new_group({2, 3, 1});
      if (group != nullptr) body(*group, 1 << group->rank().value());
    });
  }
};
INSTANTIATE_TEST_SUITE_P(, Lists, OnEveryBackend::all(), OnEveryBackend::name);

TEST_P(Lists, OfAnySizesAreReducedAsOne) {
  on_group([](Communicator& group, int weight) {
    for (const std::size_t first : {0u, 1u, 300000u}) {
      std::vector<float> a(first, static_cast<float>(weight)), b, c(7, static_cast<float>(weight));
      std::vector<std::int64_t> d, e(100, weight);
      const std::array list = {as_output(a), as_output(d), as_output(b), as_output(e),
                               as_output(c)};
      group.all_reduce_coalesced(list).wait();
      EXPECT_EQ(a, std::vector<float>(first, 7));
      EXPECT_EQ(c, std::vector<float>(7, 7));
      EXPECT_EQ(e, std::vector<std::int64_t>(100, 7));
    }
  });
}

TEST_P(Lists, MayBeEmptyOrHoldOnlyEmptyBuffers) {
  on_group([](Communicator& group, int) {
    std::vector<float> nothing;
    const std::array list = {as_output(nothing), as_output(nothing)};
    group.all_reduce_coalesced({}).wait();
    group.all_reduce_coalesced(list).wait();
    group.broadcast_coalesced(list, {.root = 2}).wait();
    group.batch_send_recv({}).wait();
    group.barrier().wait();
  });
}

TEST_P(Lists, AreBroadcastFromAnyRoot) {
  on_group([](Communicator& group, int weight) {
    std::vector<std::uint8_t> a(3, static_cast<std::uint8_t>(weight));
    std::vector<double> b(100000, weight);
    const std::array list = {as_output(a), as_output(b)};
    group.broadcast_coalesced(list, {.root = 1}).wait();
    EXPECT_EQ(a, std::vector<std::uint8_t>(3, 2));
    EXPECT_EQ(b, std::vector<double>(100000, 2));
  });
}

TEST_P(Lists, OfPairsAreGatheredAndScattered) {
  on_group([](Communicator& group, int weight) {
    std::vector<std::int32_t> own(5, weight), all(15), share(5);
    std::vector<double> small(1, weight), three(3), part(1);
    const std::array<ConstView, 2> owns = {as_input(own), as_input(small)};
    const std::array wholes = {as_output(all), as_output(three)};
    group.all_gather_coalesced(owns, wholes).wait();
    EXPECT_EQ(all, (std::vector<std::int32_t>{1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4}));
    EXPECT_EQ(three, (std::vector<double>{1, 2, 4}));
    const std::array<ConstView, 2> inputs = {as_input(all), as_input(three)};
    const std::array shares = {as_output(share), as_output(part)};
    group.reduce_scatter_coalesced(inputs, shares).wait();
    EXPECT_EQ(share, std::vector<std::int32_t>(5, 3 * weight));
    EXPECT_EQ(part, std::vector<double>(1, 3 * weight));
  });
}

TEST_P(Lists, FactorsWeighTheInputsAndLeaveThemAlone) {
  on_group([](Communicator& group, int weight) {
    const std::vector<float> input(1000, 8);
    std::vector<float> output(1000), in_place(1000, 8), share(1000), at_root(1000, -1);
    const double factor = 0.5 * weight;
    group.all_reduce(input, output, {.factor = factor}).wait();
    group.all_reduce(in_place, {.factor = factor}).wait();
    EXPECT_EQ(output, std::vector<float>(1000, 28));
    EXPECT_EQ(in_place, output);
    const std::vector<float> whole(3000, 8);
    group.reduce_scatter(whole, share, {.factor = factor}).wait();
    EXPECT_EQ(share, output);
    group.reduce(input, at_root, {.root = 2, .factor = factor}).wait();
    EXPECT_EQ(at_root, group.rank() == 2 ? output : std::vector<float>(1000, -1));
    EXPECT_EQ(input, std::vector<float>(1000, 8));
    std::vector<float> list_entry(10, 8);
    const std::array list = {as_output(list_entry)};
    group.all_reduce_coalesced(list, {.factor = factor}).wait();
    EXPECT_EQ(list_entry, std::vector<float>(10, 28));
  });
}

TEST_P(Lists, SharesMayBeUnevenAndEmpty) {
  on_group([](Communicator& group, int weight) {
    const std::vector<std::size_t> counts = {0, 5, 2};
    const std::size_t own = counts[static_cast<std::size_t>(group.rank())];
    std::vector<std::int32_t> input(own, weight), all(7, -1), share(own, -1);
    const std::vector<std::int32_t> expected = {2, 2, 2, 2, 2, 4, 4};
    group.all_gather(input, all, {.counts = counts}).wait();
    EXPECT_EQ(all, expected);
    group.reduce_scatter(all, share, {.counts = counts}).wait();
    EXPECT_EQ(share, std::vector<std::int32_t>(own, 3 * weight));
    std::fill(all.begin(), all.end(), -1);
    group.gather(input, all, {.root = 0, .counts = counts}).wait();
    EXPECT_EQ(all, group.rank() == 0 ? expected : std::vector<std::int32_t>(7, -1));
    group.scatter(all, share, {.root = 0, .counts = counts}).wait();
    EXPECT_EQ(share, input);
  });
}

}  // namespace
}  // namespace stretto::testing
