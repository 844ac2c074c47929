// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Starting an operation the second time allocates nothing: neither the call, nor the progress of
// it, nor waiting for it.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "stretto/base/rank_vector.h"
#include "stretto/job/threads.h"
#include "tests/allocation/counter.h"

namespace stretto::testing {
namespace {

constexpr int kRanks = 2;
constexpr std::size_t kElements = 3000;

// The buffers of one rank's operations. Options with lists are made once, as in a program.
struct Buffers {
  View small;
  View large;
  View other_large;
  std::array<View, 3> list;
  AllGatherOptions gathered = {.counts = {1000, 2000}};
  ReduceScatterOptions scattered = {.counts = {1000, 2000}};
  AllToAllOptions exchanged;
};

using Start = std::function<Work(Communicator&, Buffers&)>;

struct Tested {
  std::string name;
  Start start;
};

Rank other(Communicator& comm) { return 1 - comm.rank().value(); }

View own_share(Communicator& comm, View whole) {
  return comm.rank() == 0 ? whole.slice(0, 1000) : whole.slice(1000, 2000);
}

std::vector<Tested> collectives() {
  return {
      {"all_reduce", [](auto& c, auto& b) { return c.all_reduce(b.large); }},
      {"all_reduce_out_of_place",
       [](auto& c, auto& b) { return c.all_reduce(b.large, b.other_large); }},
      {"all_reduce_mean",
       [](auto& c, auto& b) { return c.all_reduce(b.large, {.op = ReduceOp::mean}); }},
      {"all_reduce_factor",
       [](auto& c, auto& b) { return c.all_reduce(b.large, {.factor = 0.5}); }},
      {"reduce", [](auto& c, auto& b) { return c.reduce(b.large, {.root = 1}); }},
      {"reduce_factor",
       [](auto& c, auto& b) { return c.reduce(b.large, {.root = 1, .factor = 0.5}); }},
      {"broadcast", [](auto& c, auto& b) { return c.broadcast(b.large); }},
      {"all_gather", [](auto& c, auto& b) { return c.all_gather(b.small, b.large); }},
      {"reduce_scatter", [](auto& c, auto& b) { return c.reduce_scatter(b.large, b.small); }},
      {"reduce_scatter_factor",
       [](auto& c, auto& b) { return c.reduce_scatter(b.large, b.small, {.factor = 0.5}); }},
      {"gather", [](auto& c, auto& b) { return c.gather(b.small, b.large, {.root = 1}); }},
      {"scatter", [](auto& c, auto& b) { return c.scatter(b.large, b.small, {.root = 1}); }},
      {"all_to_all", [](auto& c, auto& b) { return c.all_to_all(b.large, b.other_large); }},
      {"all_to_all_in_place", [](auto& c, auto& b) { return c.all_to_all(b.large, b.large); }},
      {"barrier", [](auto& c, auto&) { return c.barrier(); }},
  };
}

std::vector<Tested> uneven() {
  return {
      {"uneven_all_gather",
       [](auto& c, auto& b) {
         return c.all_gather(own_share(c, b.other_large), b.large, b.gathered);
       }},
      {"uneven_reduce_scatter",
       [](auto& c, auto& b) {
         return c.reduce_scatter(b.large, own_share(c, b.other_large), b.scattered);
       }},
      {"uneven_all_to_all",
       [](auto& c, auto& b) {
         const std::size_t received = c.rank() == 0 ? 2500 : 3000;
         const std::size_t sent = c.rank() == 0 ? 3000 : 2500;
         return c.all_to_all(b.large.slice(0, sent), b.other_large.slice(0, received), b.exchanged);
       }},
  };
}

std::vector<Tested> messages() {
  return {
      {"send_recv",
       [](auto& c, auto& b) {
         return c.rank() == 0 ? c.send(b.large, {.to = 1}) : c.recv(b.large, {.from = 0});
       }},
  };
}

// A small message that comes before its receive is kept until then, and so is each that a receive
// from any rank may take. That costs two allocations: its bytes and its place in a list.
std::vector<Tested> early_messages() {
  return {
      {"send_recv_any",
       [](auto& c, auto& b) {
         return c.rank() == 0 ? c.send(b.small, {.to = 1, .tag = 3})
                              : c.recv(b.small, {.from = kAnyRank, .tag = 3});
       }},
  };
}

// Lists and batches cost some allocations: few, and as many each time.
std::vector<Tested> lists() {
  return {
      {"all_reduce_coalesced", [](auto& c, auto& b) { return c.all_reduce_coalesced(b.list); }},
      {"broadcast_coalesced", [](auto& c, auto& b) { return c.broadcast_coalesced(b.list); }},
      {"batch_send_recv",
       [](auto& c, auto& b) {
         const std::array transfers = {Transfer::send(b.large, other(c), 1),
                                       Transfer::recv(b.other_large, other(c), 1)};
         return c.batch_send_recv(transfers);
       }},
  };
}

struct Place {
  bool shared_memory;
  bool registered;
  SingleCopy single_copy = SingleCopy::off;
};

class SecondCall : public ::testing::TestWithParam<Place> {
 protected:
  SecondCall() {
    for (int rank = 0; rank < kRanks; ++rank) {
      Buffers& mine = buffers_[static_cast<std::size_t>(rank)];
      mine.small = buffer(rank, kElements / 2);
      mine.large = buffer(rank, kElements);
      mine.other_large = buffer(rank, kElements);
      mine.list = {buffer(rank, 10), buffer(rank, 100), buffer(rank, 1000)};
      mine.exchanged.send_counts = {1500, 1500};
      mine.exchanged.recv_counts = {1500, 1500};
      (rank == 0 ? mine.exchanged.recv_counts[1] : mine.exchanged.send_counts[0]) = 1000;
    }
  }

  View buffer(int rank, std::size_t count) {
    if (GetParam().registered) {
      memory_.push_back(ranks_[rank]->allocate_bytes(count * 4));
      return {memory_.back().bytes().data(), count, DType::f32};
    }
    private_.push_back(std::make_unique<std::vector<float>>(count));
    return as_output(*private_.back());
  }

  // Makes one call on all ranks, from this thread; returns how often memory was allocated for it.
  long run(const Start& start) {
    const AllocationCount count;
    std::array<Work, kRanks> works;
    for (std::size_t r = 0; r < kRanks; ++r) works[r] = start(*ranks_[r], buffers_[r]);
    for (bool all = false; !all;) {
      all = true;
      for (Work& work : works) all = work.done() && all;
    }
    for (Work& work : works) work.wait();
    return count.value();
  }

  // One of a few series of calls must stay within `allowed`. Messages that come early are kept; if
  // more of them come at once than ever before, because a thread had no core, their place is
  // allocated.
  void expect_at_most(long allowed, const std::vector<Tested>& all) {
    constexpr int kSeries = 4, kCalls = 39;
    for (const auto& [name, start] : all) {
      (void)run(start);
      long most = allowed + 1;
      for (int series = 0; series < kSeries && most > allowed; ++series) {
        most = 0;
        for (int call = 0; call < kCalls; ++call) most = std::max(most, run(start));
      }
      EXPECT_LE(most, allowed) << name;
    }
  }

  RankVector<std::unique_ptr<Communicator>> ranks_ =
      make_thread_ranks({.size = kRanks,
                         .shared_memory = GetParam().shared_memory,
                         .single_copy = GetParam().single_copy});
  std::vector<Memory> memory_;
  std::vector<std::unique_ptr<std::vector<float>>> private_;
  std::array<Buffers, kRanks> buffers_;
};

TEST_P(SecondCall, OfACollectiveAllocatesNothing) { expect_at_most(0, collectives()); }

TEST_P(SecondCall, OfAnUnevenCollectiveAllocatesNothing) { expect_at_most(0, uneven()); }

TEST_P(SecondCall, OfAMessageAllocatesNothing) { expect_at_most(0, messages()); }

TEST_P(SecondCall, OfAMessageThatIsKeptAllocatesItsPlace) { expect_at_most(2, early_messages()); }

TEST_P(SecondCall, OfAListAllocatesLittle) { expect_at_most(40, lists()); }

TEST_P(SecondCall, IsWhereTheTestWouldNoticeOne) {
  EXPECT_GT(run([](Communicator& comm, Buffers& buffers) {
              const auto something = std::make_unique<Buffers>(buffers);
              return comm.all_reduce(something->large);
            }),
            0);
}

INSTANTIATE_TEST_SUITE_P(, SecondCall,
                         ::testing::Values(Place{false, false}, Place{false, true},
                                           Place{true, false}, Place{true, true},
                                           Place{true, false, SingleCopy::always}),
                         [](const auto& tested) {
                           const Place& place = tested.param;
                           return std::string(place.shared_memory ? "mapped" : "messages") +
                                  (place.registered ? "_registered" : "_private") +
                                  (place.single_copy == SingleCopy::off ? "" : "_single_copy");
                         });

}  // namespace
}  // namespace stretto::testing
