// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <array>
#include <numeric>

#include <gtest/gtest.h>

#include "stretto/base/rank_vector.h"
#include "tests/contract/rank_communicators.h"

namespace stretto::testing {
namespace {

// Lists of buffers, uneven shares and factors, on a group whose ranks are not in the job's order.

constexpr int kSize = 3;

class Lists : public OnEveryKind {
 protected:
  // `body` gets the group and this rank's weight in it: 1, 2 or 4.
  static void on_group(const std::function<void(Communicator&, int weight)>& body) {
    on_all(make(kSize + 1), [&](Communicator& comm) {
      auto group = comm.new_group({2, 3, 1});
      if (group != nullptr) body(*group, 1 << group->rank().value());
    });
  }
};
INSTANTIATE_TEST_SUITE_P(, Lists, OnEveryKind::all(), OnEveryKind::name);

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
    const RankVector<std::size_t> counts = {0, 5, 2};
    const std::size_t own = counts[group.rank()];
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

// Collectives whose shares are separate buffers.

using Values = std::vector<std::int32_t>;

// What rank `from` has for rank `to`.
Values values_of(int from, int to, std::size_t count) {
  Values values(count);
  std::iota(values.begin(), values.end(), from * 10000 + to * 100);
  return values;
}

// Elements of the share of rank `a`, or of what rank `a` sends to rank `b`.
std::size_t length(bool equal, int a, int b = 0) {
  return equal ? 5 : static_cast<std::size_t>((a * 3 + b * 2) % 5);
}

template <class AnyView>
std::vector<AnyView> views_of(std::vector<Values>& list) {
  std::vector<AnyView> views;
  for (Values& values : list) views.push_back(view_of(std::span(values)));
  return views;
}

class ShareLists : public OnEveryKind {
 protected:
  // Runs `body` on 1 to 4 ranks, with equal and with unequal shares.
  static void try_all(const std::function<void(Communicator&, bool equal)>& body) {
    for (int size = 1; size <= 4; ++size) {
      on_all(make(size), [&](Communicator& comm) {
        for (const bool equal : {true, false}) {
          for (int round = 0; round < 3; ++round) body(comm, equal);
        }
      });
    }
  }
};
INSTANTIATE_TEST_SUITE_P(, ShareLists, OnEveryKind::all(), OnEveryKind::name);

TEST_P(ShareLists, AreGathered) {
  try_all([](Communicator& comm, bool equal) {
    const int self = comm.rank().value();
    const Values own = values_of(self, 0, length(equal, self));
    std::vector<Values> all, at_root;
    std::vector<std::size_t> counts;
    const Rank root = comm.size() - 1;
    for (int r = 0; r < comm.size(); ++r) {
      counts.push_back(length(equal, r));
      all.emplace_back(counts.back(), -1);
      if (comm.rank() == root) at_root.emplace_back(counts.back(), -1);
    }
    comm.all_gather_list(const_view_of(std::span(own)), views_of<View>(all)).wait();
    comm.gather_list(const_view_of(std::span(own)), views_of<View>(at_root),
                     {.root = root, .counts = counts})
        .wait();
    for (int r = 0; r < comm.size(); ++r) {
      const auto i = static_cast<std::size_t>(r);
      EXPECT_EQ(all[i], values_of(r, 0, counts[i]));
      if (comm.rank() == root) {
        EXPECT_EQ(at_root[i], values_of(r, 0, counts[i]));
      }
    }
  });
}

TEST_P(ShareLists, AreScatteredAndReduced) {
  try_all([](Communicator& comm, bool equal) {
    const int self = comm.rank().value();
    const Rank root = comm.size() / 2;
    std::vector<Values> inputs, at_root;
    std::vector<std::size_t> counts;
    for (int r = 0; r < comm.size(); ++r) {
      counts.push_back(length(equal, r));
      inputs.push_back(values_of(self, r, counts.back()));
      if (comm.rank() == root) at_root.push_back(values_of(self, r, counts.back()));
    }
    const std::vector<Values> before = inputs;
    Values scattered(length(equal, self)), reduced(length(equal, self));
    comm.scatter_list(views_of<ConstView>(at_root), view_of(std::span(scattered)),
                      {.root = root, .counts = counts})
        .wait();
    comm.reduce_scatter_list(views_of<ConstView>(inputs), view_of(std::span(reduced))).wait();
    EXPECT_EQ(scattered, values_of(root.value(), self, length(equal, self)));
    Values sums(length(equal, self));
    for (int r = 0; r < comm.size(); ++r) {
      const Values values = values_of(r, self, sums.size());
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
    }
    EXPECT_EQ(reduced, sums);
    EXPECT_EQ(inputs, before);
  });
}

TEST_P(ShareLists, AreExchanged) {
  try_all([](Communicator& comm, bool equal) {
    const int self = comm.rank().value();
    RankVector<Values> inputs, outputs;
    for (int r = 0; r < comm.size(); ++r) {
      inputs.push_back(values_of(self, r, length(equal, self, r)));
      outputs.emplace_back(length(equal, r, self), -1);
    }
    comm.all_to_all_list(views_of<ConstView>(inputs), views_of<View>(outputs)).wait();
    for (int r = 0; r < comm.size(); ++r) {
      EXPECT_EQ(outputs[r], values_of(r, self, length(equal, r, self)));
    }
  });
}

}  // namespace
}  // namespace stretto::testing
