// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Collectives whose shares are buffers apart, and what is left of a group when a rank is lost.

#include <gtest/gtest.h>

#include <numeric>

#include "tests/contract/rank_communicators.h"

namespace stretto::testing {
namespace {

using Values = std::vector<std::int32_t>;

// What rank `from` has for rank `to`.
Values values_of(int from, int to, std::size_t count) {
  Values values(count);
  std::iota(values.begin(), values.end(), from * 10000 + to * 100);
  return values;
}

// Of the share of a rank, or of what goes from one to another.
std::size_t length(bool equal, int a, int b = 0) {
  return equal ? 5 : static_cast<std::size_t>((a * 3 + b * 2) % 5);
}

template <class AnyView>
std::vector<AnyView> views_of(std::vector<Values>& list) {
  std::vector<AnyView> views;
  for (Values& values : list) views.push_back(view_of(std::span(values)));
  return views;
}

class ShareLists : public OnEveryBackend {
 protected:
  // For 1 to 4 ranks, with equal shares and others.
  static void try_all(const std::function<void(Communicator&, bool equal)>& body) {
    for (int size = 1; size <= 4; ++size) {
      auto ranks = make(size);
      on_all(ranks, [&](Communicator& comm) {
        for (const bool equal : {true, false}) {
          for (int round = 0; round < 3; ++round) body(comm, equal);
        }
      });
    }
  }
};
INSTANTIATE_TEST_SUITE_P(, ShareLists, OnEveryBackend::all(), OnEveryBackend::name);

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
    std::vector<Values> inputs, outputs;
    for (int r = 0; r < comm.size(); ++r) {
      inputs.push_back(values_of(self, r, length(equal, self, r)));
      outputs.emplace_back(length(equal, r, self), -1);
    }
    comm.all_to_all_list(views_of<ConstView>(inputs), views_of<View>(outputs)).wait();
    for (int r = 0; r < comm.size(); ++r) {
      EXPECT_EQ(outputs[static_cast<std::size_t>(r)], values_of(r, self, length(equal, r, self)));
    }
  });
}

TEST_P(ShareLists, ThatAreWrongAreRefused) {
  auto ranks = make(2);
  on_all(ranks, [](Communicator& comm) {
    std::vector<Values> list(3, Values(2));
    Values own(2);
    EXPECT_THROW((void)comm.all_gather_list(view_of(std::span(own)), views_of<View>(list)),
                 InvalidArgument);
    list.resize(2);
    own.resize(3);
    EXPECT_THROW((void)comm.reduce_scatter_list(views_of<ConstView>(list), view_of(std::span(own))),
                 InvalidArgument);
    std::vector<float> floats(2);
    std::vector<View> mixed = views_of<View>(list);
    mixed[1] = view_of(std::span(floats));
    EXPECT_THROW((void)comm.all_to_all_list(views_of<ConstView>(list), mixed), InvalidArgument);
    comm.barrier().wait();
  });
}

}  // namespace
}  // namespace stretto::testing
