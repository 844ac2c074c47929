// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What every rank is told when ranks disagree, or do not come.

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <tuple>

#include "tests/contract/rank_communicators.h"
#include "tests/support/failures.h"
#include "tests/support/soon.h"

namespace stretto::testing {
namespace {

using std::chrono::milliseconds;

using Call = std::function<Work(Communicator&, std::span<float>)>;

// One operation as rank 1 of three calls it, and as the others do.
struct Disagreement {
  std::string name;
  Call others;
  Call rank_1;
  std::string first_difference;
};

// Every size divides by three.
Call all_reduce(const AllReduceOptions& options, std::size_t count = 12) {
  return [=](Communicator& comm, std::span<float> data) {
    return comm.all_reduce(data.first(count), options);
  };
}

Call broadcast(Rank root) {
  return [=](Communicator& comm, std::span<float> data) {
    return comm.broadcast(data, {.root = root});
  };
}

Call shares(const std::vector<std::size_t>& counts) {
  return [=](Communicator& comm, std::span<float> data) {
    const std::size_t own = counts[static_cast<std::size_t>(comm.rank())];
    return comm.reduce_scatter(std::span<const float>(data.first(6)), data.subspan(8, own),
                               {.counts = counts});
  };
}

// Rank 0 sends rank 1 four elements; rank 1 expects another number.
Call exchange(std::size_t third_to_rank_1) {
  return [=](Communicator& comm, std::span<float> data) {
    std::vector<std::size_t> sends = {1, comm.rank() == 0 ? 4u : 1u, 1};
    std::vector<std::size_t> receives = {1, 1, 1};
    if (comm.rank() == 1) receives[0] = third_to_rank_1;
    return comm.all_to_all(std::span<const float>(data.first(comm.rank() == 0 ? 6 : 3)),
                           data.subspan(8, comm.rank() == 1 ? third_to_rank_1 + 2 : 3),
                           {.send_counts = sends, .recv_counts = receives});
  };
}

Call list(std::size_t first) {
  return [=](Communicator& comm, std::span<float> data) {
    const std::array views = {view_of(data.first(first)), view_of(data.subspan(first))};
    return comm.all_reduce_coalesced(views);
  };
}

Work barrier(Communicator& comm, std::span<float>) { return comm.barrier(); }

Work monitored_barrier(Communicator& comm, std::span<float>) {
  comm.monitored_barrier();
  return {};
}

Work new_group(Communicator& comm, std::span<float>) {
  (void)comm.new_group({0, 1, 2});
  return {};
}

Work all_gather(Communicator& comm, std::span<float> data) {
  return comm.all_gather(std::span<const float>(data.first(1)), data.subspan(3, 3));
}

Work as_integers(Communicator& comm, std::span<float> data) {
  return comm.all_reduce(std::span(reinterpret_cast<std::int32_t*>(data.data()), 12));
}

std::vector<Disagreement> disagreements() {
  return {
      {"Collective", all_reduce({}), broadcast(0), "collective"},
      {"CollectiveBarrier", all_reduce({}), barrier, "collective"},
      {"Operation", all_reduce({}), all_reduce({.op = ReduceOp::max}), "reduce operation"},
      {"DType", all_reduce({}), as_integers, "dtype"},
      {"Count", all_reduce({}), all_reduce({}, 9), "count"},
      {"Root", broadcast(0), broadcast(2), "root"},
      {"Algorithm", all_reduce({.algorithm = "direct"}), all_reduce({.algorithm = "ring"}),
       "algorithm"},
      {"ChosenAndNamedAlgorithm", all_reduce({}), all_reduce({.algorithm = "ring"}), "algorithm"},
      {"Shares", shares({1, 2, 3}), shares({2, 2, 2}), "layout"},
      {"OtherShares", shares({1, 2, 3}), shares({1, 3, 2}), "layout"},
      {"CountsOfAPair", exchange(4 + 1), exchange(4 + 1), "count"},
      {"Lists", list(3), list(5), "layout"},
      {"MonitoredBarrier", barrier, monitored_barrier, "collective"},
      {"NewGroup", all_gather, new_group, "dtype"},
  };
}

class EveryDisagreement : public ::testing::TestWithParam<std::tuple<std::size_t, bool>> {};

TEST_P(EveryDisagreement, IsToldToAllRanksWithBothCalls) {
  const auto [number, shared_memory] = GetParam();
  const Disagreement disagreement = disagreements()[number];
  auto ranks = make_thread_ranks(
      {.size = 3, .shared_memory = shared_memory, .timeout = std::chrono::seconds(20)});
  on_all(ranks, [&](Communicator& comm) {
    std::vector<float> data(24);
    const std::string text = error_of<Mismatch>([&] {
      const auto& call = comm.rank() == 1 ? disagreement.rank_1 : disagreement.others;
      call(comm, std::span(data).first(12)).wait();
      // A rank whose part had ended before anybody noticed hears of it in its next call.
      comm.barrier().wait();
    });
    expect_contains(text, "rank 1 ");
    expect_contains(text, "First difference: " + disagreement.first_difference);
    expect_contains(text, "#1");
    // The first failure is repeated.
    EXPECT_EQ(error_of<Mismatch>([&] { comm.barrier().wait(); }), text);
  });
}

INSTANTIATE_TEST_SUITE_P(
    , EveryDisagreement,
    ::testing::Combine(::testing::Range(std::size_t{0}, disagreements().size()), ::testing::Bool()),
    [](const auto& tested) {
      return disagreements()[std::get<0>(tested.param)].name +
             (std::get<1>(tested.param) ? "_mapped" : "_messages");
    });

// Rank 1's part of the gather is a message to another host, which needs no rank of its own host.
TEST(DisagreementOnAHost, SaysWhoHasCalledMoreBefore) {
  std::atomic<int> told{0};
  on_all(make_thread_ranks({.size = 4, .timeout = std::chrono::seconds(20), .hosts = {0, 0, 1, 1}}),
         [&](Communicator& comm) {
           std::vector<float> data(16);
           const auto values = std::span(data).first(4);
           if (comm.rank() >= Rank(2)) {
             EXPECT_TRUE(comes_true([&] { return told == 2; }));
             (void)error_of<Error>([&] { comm.all_reduce(values).wait(); });
             return;
           }
           if (comm.rank() == 1) {
             comm.gather(std::span<const float>(values), std::span<float>(), {.root = 2}).wait();
           }
           const std::string text = error_of<Mismatch>([&] { comm.all_reduce(values).wait(); });
           ++told;
           const bool is_first = comm.rank() == 0;
           expect_contains(text, is_first
                                     ? "rank 1 called all_reduce(sum f32 [4]) as operation #2"
                                     : "rank 0 called all_reduce(sum f32 [4]) as operation #1");
           expect_contains(text, "First difference: how many operations came before");
         });
}

class Lateness : public ::testing::TestWithParam<bool> {
 protected:
  std::vector<std::unique_ptr<Communicator>> make(int size) const {
    return make_thread_ranks(
        {.size = size, .shared_memory = GetParam(), .timeout = std::chrono::seconds(20)});
  }
};

// In a ring, ranks wait for ranks that wait as well; the rank at the root of the chain is named. On
// mapped memory there are no chains: every rank sees every other.
TEST(LatenessOfAChain, NamesItsRoot) {
  auto ranks = make_thread_ranks({.size = 4, .timeout = std::chrono::seconds(20)});
  std::atomic<int> failed{0};
  on_all(ranks, [&](Communicator& comm) {
    std::vector<float> data(1 << 16);
    if (comm.rank() == 1) {
      while (failed < 3) std::this_thread::sleep_for(milliseconds(5));
      return;
    }
    const std::string text = error_of<Timeout>([&] {
      comm.all_reduce(data, {.algorithm = "ring", .timeout = milliseconds(2000)}).wait();
    });
    ++failed;
    expect_contains(text, "timed out waiting for rank 1 (");
    expect_contains(text, "has called no collective of the group");
  });
}

// Blocking calls enter two groups of the same ranks in different orders.
TEST_P(Lateness, ARankThatWaitsInAnotherGroupSaysSo) {
  std::atomic<int> failed{0};
  on_all(make(2), [&](Communicator& comm) {
    auto other = comm.new_group({0, 1});
    std::vector<float> data(12);
    Communicator& first = comm.rank() == 0 ? comm : *other;
    const std::string text =
        error_of<Timeout>([&] { first.all_reduce(data, {.timeout = milliseconds(2000)}).wait(); });
    ++failed;
    while (failed < 2) std::this_thread::sleep_for(milliseconds(5));  // Keeps its groups.
    expect_contains(text, ", which is in all_reduce(sum f32 [12]) #");
    expect_contains(text, " of another group of all ranks, waiting for rank ");
  });
}

// Messages name another group by its ranks, since a number of ours would mean nothing to a user.
TEST_P(Lateness, ARankThatWaitsInASmallerGroupSaysInWhich) {
  on_all(make(3), [&](Communicator& comm) {
    auto pair = comm.new_group({1, 2});
    comm.barrier().wait();
    std::vector<float> data(12);
    Communicator& waits_in = comm.rank() == 1 ? *pair : comm;
    const bool asks = comm.rank() == 0;
    const auto wait = [&] {
      waits_in.all_reduce(data, {.timeout = milliseconds(asks ? 2000 : 4000)}).wait();
    };
    if (!asks) return (void)error_of(wait);
    const std::string text = error_of<Timeout>(wait);
    expect_contains(text,
                    ", which is in all_reduce(sum f32 [12]) #1 of the group of ranks 1, 2, "
                    "waiting for rank 2");
  });
}

INSTANTIATE_TEST_SUITE_P(, Lateness, ::testing::Bool(), [](const auto& tested) {
  return std::string(tested.param ? "mapped" : "messages");
});

}  // namespace
}  // namespace stretto::testing
