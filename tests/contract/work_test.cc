// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What a Work promises: continuations, sources, and barriers that say who is missing.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include "stretto/base/rank_vector.h"
#include "tests/contract/rank_communicators.h"
#include "tests/support/expect_contains.h"
#include "tests/support/failures.h"
#include "tests/support/on_threads.h"
#include "tests/support/soon.h"

namespace stretto::testing {
namespace {

using std::chrono::milliseconds;

class Works : public OnBoth {};
INSTANTIATE_TEST_SUITE_P(, Works, OnBoth::both(), OnBoth::name);
class WorksOfAny : public OnEveryKind {};
INSTANTIATE_TEST_SUITE_P(, WorksOfAny, OnEveryKind::all(), OnEveryKind::name);

// Counts how often it was called, and with what.
struct Told {
  std::atomic<int> times{0};
  std::atomic<StatusCode> code{StatusCode::internal};

  Continuation continuation() {
    return [this](const Status& status) {
      code = status.code();
      ++times;
    };
  }
  bool soon() const {
    return comes_true([this] { return times > 0; });
  }
};

TEST_P(WorksOfAny, ContinueAfterSuccess) {
  on_all(make(2), [](Communicator& comm) {
    std::vector<std::int32_t> data(1000, 1);
    Told first, second, late;
    std::atomic<std::int32_t> seen{0};
    Work work = comm.all_reduce(data);
    work.add_callback(first.continuation());
    work.add_callback([&](const Status&) { seen = data.back(); });
    work.add_callback(second.continuation());
    work.wait();
    EXPECT_TRUE(first.soon());
    EXPECT_TRUE(second.soon());
    EXPECT_EQ(first.code, StatusCode::ok);
    EXPECT_EQ(seen, 2) << "the result is there";
    work.add_callback(late.continuation());
    EXPECT_EQ(late.times, 1) << "at once";
    comm.barrier().wait();
    EXPECT_EQ(first.times, 1);
  });
}

TEST_P(WorksOfAny, ContinueAfterFailure) {
  on_all(make(2), [](Communicator& comm) {
    std::vector<float> data(comm.rank() == 0 ? 10 : 11);
    Told before, after;
    try {
      Work work = comm.all_reduce(data);
      work.add_callback(before.continuation());
      EXPECT_EQ(work.wait_status().code(), StatusCode::mismatch);
      EXPECT_TRUE(before.soon());
      EXPECT_EQ(before.code, StatusCode::mismatch);
      work.add_callback(after.continuation());
      EXPECT_EQ(after.code, StatusCode::mismatch);
    } catch (const Mismatch&) {
      // The other rank's call had come before this one.
    }
  });
}

TEST_P(Works, ContinueWhenTheirCommunicatorIsDestroyed) {
  auto ranks = make(2);
  std::vector<float> data(10);
  Told told, listed;
  Work work = ranks[0]->all_reduce(data);
  work.add_callback(told.continuation());
  const View list[] = {as_output(data)};
  Work list_work = ranks[0]->all_reduce_coalesced(list);
  list_work.add_callback(listed.continuation());
  EXPECT_EQ(told.times, 0);
  ranks[0].reset();
  EXPECT_EQ(work.wait_status().code(), StatusCode::aborted);
  EXPECT_EQ(told.times, 1);
  EXPECT_EQ(told.code, StatusCode::aborted);
  EXPECT_TRUE(listed.soon());  // Perhaps by another thread.
}

TEST_P(WorksOfAny, ContinueWhenTheyAreAborted) {
  auto ranks = make(2);
  std::vector<float> data(10);
  Told told;
  Work work = ranks[0]->all_reduce(data);
  work.add_callback(told.continuation());
  ranks[0]->abort("enough");
  EXPECT_EQ(told.times, 1);
  EXPECT_EQ(told.code, StatusCode::aborted);
}

TEST_P(WorksOfAny, TakeContinuationsFromSeveralThreads) {
  on_all(make(2), [](Communicator& comm) {
    constexpr int kThreads = 4;
    constexpr int kEach = 50;
    std::atomic<int> called{0};
    std::vector<std::int32_t> data(100000, 1);
    std::vector<Work> works(kThreads);
    for (Work& work : works) work = comm.all_reduce(data);
    on_threads_of(works, [&](Work& work) {
      for (int i = 0; i < kEach; ++i) work.add_callback([&](const Status&) { ++called; });
      work.wait();
    });
    (void)comes_true([&] {
      comm.poll();
      return called >= kThreads * kEach;
    });
    EXPECT_EQ(called, kThreads * kEach);
  });
}

// Programs that drop their handles use a barrier to wait for all operations.
TEST_P(WorksOfAny, OfABarrierEndBehindThoseThatWereSubmittedBefore) {
  on_all(make(2), [](Communicator& comm) {
    std::vector<std::int32_t> data(4 << 20, 1);
    for (int step = 1; step <= 3; ++step) {
      Work reduced = comm.all_reduce(data);
      comm.barrier().wait();
      EXPECT_TRUE(reduced.done());
      EXPECT_EQ(data.back(), 1 << step);
    }
  });
}

TEST_P(WorksOfAny, MayBeSubmittedByAContinuation) {
  on_all(make(2), [](Communicator& comm) {
    std::vector<std::int32_t> data(100, 1);
    std::atomic<int> steps{0};
    std::vector<Work> chain(10);
    std::function<void(const Status&)> next = [&](const Status&) {
      const int step = ++steps;
      if (step == 10) return;
      auto& work = chain[static_cast<std::size_t>(step)];
      work = comm.all_reduce(data);
      work.add_callback(next);
    };
    chain[0] = comm.all_reduce(data);
    chain[0].add_callback(next);
    EXPECT_TRUE(comes_true([&] {
      comm.poll();
      return steps == 10;
    }));
    EXPECT_EQ(data.front(), 1024);
  });
}

TEST_P(WorksOfAny, AreContinuedByOthersAsOneWork) {
  on_all(make(2), [](Communicator& comm) {
    std::vector<std::int32_t> sum(3, 1);
    std::vector<std::int32_t> all(6);
    bool divided = false;
    Work work = comm.all_reduce(sum).then([&] { return comm.all_gather(sum, all); }).then([&] {
      for (auto& value : all) value /= 2;
      divided = true;
    });
    work.wait();
    EXPECT_TRUE(divided);
    EXPECT_EQ(all, std::vector<std::int32_t>(6, 1));
    EXPECT_EQ(work.operation(), "all_reduce");
    Told told;
    work.add_callback(told.continuation());
    EXPECT_EQ(told.times, 1);
    // These operations have ended already.
    int called = 0;
    Work().then([&] { ++called; }).wait();
    Work().then([&] { return comm.barrier(); }).wait();
    EXPECT_EQ(called, 1);
  });
}

TEST_P(Works, EndAsTheFirstFailureOfAChain) {
  auto ranks = make(2);
  on_all(ranks, [](Communicator& comm) {
    bool called = false;
    const auto call = [&] { called = true; };
    const auto refused = [&] {
      return comm.barrier({.timeout = Duration(-1)});  // Throws InvalidArgument.
    };
    EXPECT_EQ(comm.barrier().then(refused).then(call).wait_status().code(),
              StatusCode::invalid_argument);
    const auto breaks = [] { throw std::runtime_error("broken"); };
    const Status broken = comm.barrier().then(breaks).then(call).wait_status();
    expect_failure(broken, StatusCode::internal, "broken");
    const Status odd = comm.barrier().then([] { throw 1; }).then(call).wait_status();
    expect_failure(odd, StatusCode::internal, "no std::exception");
    std::array<float, 1> data = {};
    const Rank peer = 1 - comm.rank().value();
    Work late = comm.recv(data, {.from = peer}).then([] { throw 1; });
    std::atomic<bool> told_next = false;
    late.add_callback([](const Status&) { throw 2; });
    late.add_callback([&](const Status&) { told_next = true; });
    comm.barrier().wait();
    comm.send(data, {.to = peer}).wait();
    expect_failure(late.wait_status(), StatusCode::internal, "no std::exception");
    while (!told_next) comm.poll();  // Perhaps by another thread.
    Work().add_callback([](const Status&) { throw 3; });
    Work first = comm.barrier();
    comm.barrier().wait();
    first.add_callback([](const Status&) { throw 4; });  // It has ended, and nobody has waited.
    EXPECT_FALSE(called);
    comm.barrier().wait();
  });
  Work never = ranks[0]->barrier().then([&] { return ranks[0]->barrier(); });
  Told told;
  never.add_callback(told.continuation());
  EXPECT_THROW(never.wait_for(milliseconds(20)), Timeout);
  EXPECT_FALSE(never.duration());
  ranks[0]->abort("enough");
  EXPECT_EQ(never.wait_status().code(), StatusCode::aborted);
  EXPECT_EQ(told.code, StatusCode::aborted);
}

TEST_P(WorksOfAny, MayBeOneForAll) {
  on_all(make(2), [](Communicator& comm) {
    std::vector<std::int32_t> a(3, 1);
    std::vector<std::int32_t> b(70000, 1);
    std::vector<Work> works;
    works.push_back(comm.all_reduce(a));
    works.push_back(comm.all_reduce(b));
    works.emplace_back();
    Work all = Work::all(std::move(works));
    all.wait();
    EXPECT_EQ(a.back(), 2);
    EXPECT_EQ(b.back(), 2);
    EXPECT_TRUE(Work::all({}).done());
    std::vector<Work> failing;
    failing.push_back(comm.barrier());
    failing.emplace_back(Status(StatusCode::system, "a"));
    failing.emplace_back(Status(StatusCode::timeout, "b"));
    EXPECT_EQ(Work::all(std::move(failing)).wait_status().code(), StatusCode::system);
  });
}

TEST_P(Works, TellWhatTheyWereAndHowLongItTook) {
  on_all(make(2), [](Communicator& comm) {
    std::vector<std::int32_t> data(3, 1);
    for (std::uint32_t number = 1; number <= 5; ++number) {  // Small ones end at once after a few.
      Work work = comm.all_reduce(data);
      work.wait();
      EXPECT_EQ(work.operation(), "all_reduce");
      EXPECT_EQ(work.number(), number);
      EXPECT_GE(work.duration().value(), Duration::zero());
    }
    if (comm.rank() == 1) std::this_thread::sleep_for(milliseconds(20));
    Work work = comm.barrier();
    work.wait();
    EXPECT_EQ(work.number(), 6u);
    if (comm.rank() == 0) {
      EXPECT_GE(work.duration().value(), milliseconds(10));
    }
    EXPECT_LT(work.duration().value(), std::chrono::seconds(20));
    Work message = comm.rank() == 0 ? comm.send(data, {.to = 1}) : comm.recv(data, {.from = 0});
    EXPECT_EQ(message.operation(), "send/recv");
    EXPECT_EQ(message.number(), 0u);
    message.wait();
    std::vector<Work> several;
    several.push_back(comm.all_reduce(data));
    several.push_back(comm.barrier());
    Work all = Work::all(std::move(several));
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(all.operation(), "barrier");
      EXPECT_EQ(all.number(), 8u);
      all.wait();
    }
  });
}

// When a continuation has run, all that it owns is destroyed, even the last hold on a communicator.
TEST_P(Works, MayOwnWhatTheyCameFrom) {
  auto ranks = make(2);
  on_each(ranks, [](std::unique_ptr<Communicator>& rank) {
    std::vector<std::int32_t> data(10000, 1);
    std::vector<std::int32_t> again(10, 1);
    std::atomic<bool> gone{false};
    auto owned = std::shared_ptr<Communicator>(std::move(rank));
    auto first = std::make_shared<Work>(owned->all_reduce(data));
    std::weak_ptr<Work> first_left = first;
    first->add_callback(
        [first](const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); });
    first.reset();
    ASSERT_TRUE(comes_true([&] {
      owned->poll();
      return first_left.expired();
    }));
    Work work = owned->all_reduce(again);
    work.add_callback([owned = owned, &gone](const Status&) mutable {
      owned.reset();
      gone = true;
    });
    std::weak_ptr<Communicator> left = owned;
    owned.reset();
    EXPECT_TRUE(work.wait_status().ok());
    EXPECT_TRUE(comes_true([&] { return gone && left.expired(); }));
  });
}

TEST_P(Works, AReceiveFromAnyRankFailsWhenAllOthersHaveLeft) {
  auto ranks = make(3);
  on_each(ranks, [](std::unique_ptr<Communicator>& rank) {
    if (rank->rank() != 0) return rank.reset();
    std::vector<float> data(10);
    Work work = rank->recv(data, {.from = kAnyRank});
    const Status status = work.wait_status();
    expect_failure(status, StatusCode::peer_lost, "all other ranks have left");
  });
}

TEST_P(WorksOfAny, SayWhoseMessageItWas) {
  on_all(make(3), [](Communicator& comm) {
    std::vector<std::int32_t> data(10, comm.rank().value());
    if (comm.rank() != 0) return comm.send(data, {.to = 0, .tag = 4}).wait();
    RankVector<bool> seen(3);
    for (int i = 1; i < 3; ++i) {
      Work work = comm.recv(data, {.from = kAnyRank, .tag = 4});
      while (!work.done()) comm.poll();
      ASSERT_TRUE(work.source().has_value()) << "it has ended well";
      EXPECT_EQ(data.front(), work.source()->value());
      seen[*work.source()] = true;
    }
    EXPECT_TRUE(seen[1] && seen[2]);
  });
}

// MPI 4.1, 3.5: receives of a tag take the messages of one sender in the order in which both were
// posted. This includes receives from any rank.
TEST_P(WorksOfAny, ReceivesFromAnyRankKeepTheOrder) {
  on_all(make(2), [](Communicator& comm) {
    constexpr std::size_t kMessages = 30;
    const std::size_t sizes[] = {1, 200000, 0, 70000, 5};
    std::vector<std::vector<std::uint8_t>> data;
    for (std::size_t i = 0; i < kMessages; ++i) {
      data.emplace_back(sizes[i % 5], comm.rank() == 0 ? static_cast<std::uint8_t>(i + 1) : 0);
    }
    std::vector<Work> works;
    for (std::size_t i = 0; i < kMessages; ++i) {
      const Rank from = i % 3 == 1 ? Rank(0) : kAnyRank;
      works.push_back(comm.rank() == 0 ? comm.send(data[i], {.to = 1, .tag = 9})
                                       : comm.recv(data[i], {.from = from, .tag = 9}));
    }
    for (std::size_t i = kMessages; i-- > 0;) works[i].wait();
    for (std::size_t i = 0; i < kMessages; ++i) {
      if (!data[i].empty()) {
        EXPECT_EQ(data[i].back(), i + 1);
      }
    }
  });
}

TEST_P(WorksOfAny, BatchesMayWaitForEachOtherInAnyOrder) {
  constexpr int kSize = 4;
  on_all(make(kSize), [](Communicator& comm) {
    const int self = comm.rank().value();
    for (const std::size_t count : {1u, 100000u}) {
      std::vector<std::vector<std::int32_t>> out(kSize, std::vector<std::int32_t>(count, self));
      std::vector<std::vector<std::int32_t>> in(kSize, std::vector<std::int32_t>(count, -1));
      std::vector<Transfer> transfers;
      // Even ranks post sends first, to the nearest rank first; odd ranks do it the other way
      // round.
      for (int i = 1; i < kSize; ++i) {
        const int peer = (self + (self % 2 == 0 ? i : kSize - i)) % kSize;
        const auto at = static_cast<std::size_t>(peer);
        const auto where = self % 2 == 0 ? transfers.begin() : transfers.end();
        transfers.insert(where, Transfer::send(out[at], peer, 3));
        transfers.push_back(Transfer::recv(in[at], peer, 3));
      }
      comm.batch_send_recv(transfers).wait();
      for (int peer = 0; peer < kSize; ++peer) {
        if (peer != self) {
          EXPECT_EQ(in[static_cast<std::size_t>(peer)].back(), peer);
        }
      }
    }
  });
}

TEST_P(Works, AMonitoredBarrierNamesAllWhoAreMissing) {
  for (const bool root_is_late : {false, true}) {
    auto ranks = make(5);
    std::atomic<int> told{0};
    on_all(ranks, [&](Communicator& comm) {
      comm.barrier().wait();
      if (comm.rank() == 2 || comm.rank() == 4) {
        EXPECT_TRUE(comes_true([&] { return told == 3; }));
        return;
      }
      // Rank 0, which knows who is missing, may come last and have the longest time left.
      if (root_is_late && comm.rank() == 0) std::this_thread::sleep_for(milliseconds(100));
      // "rank 2 ...; rank 4 ..." by those who know it, "rank 0 waits for rank 2, 4" by others.
      const std::string text =
          error_of<Timeout>([&] { comm.monitored_barrier({.timeout = milliseconds(300)}); });
      const auto names = [&](const char* rank) { return text.find(rank) != std::string::npos; };
      EXPECT_TRUE(names("rank 2") && (names("rank 4") || names(", 4")))
          << comm.rank().value() << (root_is_late ? " (late root) " : "") << ": " << text;
      ++told;
    });
  }
}

TEST_P(WorksOfAny, AMonitoredBarrierEndsWhenAllHaveCome) {
  on_all(make(5), [](Communicator& comm) {
    for (int i = 0; i < 10; ++i) comm.monitored_barrier();
    comm.barrier().wait();
  });
}

}  // namespace
}  // namespace stretto::testing
