// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What an exception does that unwinds the stack through operations in flight: the other ranks hear
// of it at once, and the buffers belong to this rank again.

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include "tests/contract/rank_communicators.h"

namespace stretto::testing {
namespace {

class Unwinding : public OnBoth {};
INSTANTIATE_TEST_SUITE_P(, Unwinding, OnBoth::both(), OnBoth::name);

// Longer than any test here may take: nobody is told by a timeout.
constexpr std::chrono::seconds kTimeout(50);

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, text);
}

// Runs `body`, which ends in an exception of its own.
void expect_own_exception(const std::function<void()>& body) {
  EXPECT_THROW(body(), std::logic_error);
}
[[noreturn]] void fail_on_own() { throw std::logic_error("no more data"); }

// Of a piece of work that the unwinding of rank 1 ends.
template <class Exception>
std::string told(const std::function<void()>& body) {
  const TimePoint begin = Clock::now();
  try {
    body();
  } catch (const Exception& error) {
    EXPECT_LT(Clock::now() - begin, kTimeout / 2);
    EXPECT_EQ(error.status().rank(), Rank(1)) << error.what();
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no exception";
  return {};
}

TEST_P(Unwinding, AnAbandonedCollectiveIsToldToAllRanks) {
  for (const std::size_t count : {std::size_t{10}, std::size_t{300000}}) {
    auto ranks = make(3, kTimeout);
    std::atomic<int> others_ready{0};
    on_all(ranks, [&, count](Communicator& comm) {
      comm.barrier().wait();
      others_ready += comm.rank() == 1 ? 0 : 1;
      const std::string abandoned = std::string("all_reduce(sum f32 [") + std::to_string(count) +
                                    "]) #2 on rank 1: abandoned: an exception";
      if (comm.rank() == 1) {
        expect_own_exception([&] {
          while (others_ready < 2) std::this_thread::yield();
          std::vector<float> data(count);  // Gone soon after the Work.
          Work work = comm.all_reduce(data);
          fail_on_own();
        });
        return expect_contains(told<Aborted>([&] { comm.barrier().wait(); }), abandoned);
      }
      // One enters the operation, the other is elsewhere.
      std::vector<float> data(count);
      const auto wait = [&] {
        comm.rank() == 0 ? comm.all_reduce(data).wait() : comm.recv(data, {.from = 0}).wait();
      };
      expect_contains(told<Aborted>(wait), abandoned);
    });
  }
}

TEST_P(Unwinding, AnAbandonedMessageIsToldToAllRanks) {
  auto ranks = make(3, kTimeout);
  on_all(ranks, [](Communicator& comm) {
    std::vector<float> data(100000);
    if (comm.rank() != 1) {
      const std::string text = told<Aborted>([&] { comm.recv(data, {.from = 1}).wait(); });
      return expect_contains(text, "on rank 1: abandoned: an exception");
    }
    expect_own_exception([&] {
      const Transfer transfers[] = {Transfer::recv(data, 0), Transfer::recv(data, 2)};
      Work work = comm.batch_send_recv(transfers);
      fail_on_own();
    });
  });
}

TEST_P(Unwinding, WorksInContainersAndListsAreAbandonedToo) {
  auto ranks = make(2, kTimeout);
  std::atomic<bool> other_ready{false};
  on_all(ranks, [&](Communicator& comm) {
    auto group = comm.new_group({0, 1});
    std::vector<float> a(100), b(200000);
    const View list[] = {as_output(a), as_output(b)};
    if (comm.rank() == 1) {
      expect_own_exception([&] {
        while (!other_ready) std::this_thread::yield();
        std::vector<Work> works;
        works.push_back(comm.all_reduce_coalesced(list));
        works.push_back(group->all_reduce(a));
        fail_on_own();
      });
      return;
    }
    other_ready = true;
    expect_contains(told<Aborted>([&] { comm.recv(a, {.from = 1}).wait(); }), "abandoned");
    expect_contains(told<Aborted>([&] { group->recv(a, {.from = 1}).wait(); }), "abandoned");
  });
}

// Its destructor gives up a Work that was made before the exception, as a member function would.
struct Forgetful {
  Work work;
  ~Forgetful() { work = Work(); }
};

TEST_P(Unwinding, AssigningToAWorkAbandonsItAsDestroyingDoes) {
  auto ranks = make(2, kTimeout);
  on_all(ranks, [](Communicator& comm) {
    std::vector<float> data(100);
    if (comm.rank() == 1) {
      expect_own_exception([&] {
        Forgetful holder{comm.all_reduce(data)};
        fail_on_own();
      });
      return;
    }
    expect_contains(told<Aborted>([&] { comm.recv(data, {.from = 1}).wait(); }), "abandoned");
  });
}

TEST_P(Unwinding, WhatHasEndedIsNotAbandoned) {
  auto ranks = make(2, kTimeout);
  std::atomic<bool> ended{false};
  on_all(ranks, [&](Communicator& comm) {
    std::vector<std::int32_t> data(10, 1);
    if (comm.rank() == 1) {
      expect_own_exception([&] {
        Work work = comm.all_reduce(data);
        while (!ended) std::this_thread::yield();
        fail_on_own();
      });
      EXPECT_EQ(data.front(), 2);
    } else {
      comm.all_reduce(data).wait();
      ended = true;
    }
    comm.barrier().wait();
  });
}

// Communicates while it is destroyed, be it by an exception.
struct Reporter {
  Communicator& comm;
  std::vector<std::int32_t>& data;
  ~Reporter() { Work work = comm.all_reduce(data); }
};

TEST_P(Unwinding, WorksMadeMeanwhileWaitAsEver) {
  auto ranks = make(2, kTimeout);
  on_all(ranks, [](Communicator& comm) {
    std::vector<std::int32_t> data(1000, 1);
    expect_own_exception([&] {
      const Reporter reporter{comm, data};
      if (comm.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      fail_on_own();
    });
    EXPECT_EQ(data.back(), 2);
    try {
      fail_on_own();
    } catch (const std::logic_error&) {
      if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      Work work = comm.all_reduce(data);
    }
    EXPECT_EQ(data.back(), 4);
    comm.barrier().wait();
  });
}

TEST_P(Unwinding, ACommunicatorWithOperationsInFlightIsAbandoned) {
  auto ranks = make(2, kTimeout);
  on_each(ranks, [](std::unique_ptr<Communicator>& rank) {
    std::vector<float> data(100000);
    if (rank->rank() == 1) {
      Work work;
      expect_own_exception([&] {
        const std::unique_ptr<Communicator> comm = std::move(rank);
        work = comm->all_reduce(data);
        fail_on_own();
      });
      EXPECT_EQ(work.wait_status().code(), StatusCode::aborted);
      return;
    }
    const std::string text = told<Aborted>([&] { rank->recv(data, {.from = 1}).wait(); });
    expect_contains(text, "all_reduce(sum f32 [100000]) #1 on rank 1: abandoned: an exception");
  });
}

TEST_P(Unwinding, ADestroyedCommunicatorSaysWhy) {
  auto ranks = make(2, kTimeout);
  on_each(ranks, [](std::unique_ptr<Communicator>& rank) {
    rank->barrier().wait();
    if (rank->rank() == 1) {
      return expect_own_exception([&] {
        const std::unique_ptr<Communicator> comm = std::move(rank);
        fail_on_own();
      });
    }
    expect_contains(told<PeerLost>([&] { rank->barrier().wait(); }),
                    "rank 1 has destroyed its communicator because an exception unwound its stack");
  });
}

// Nothing that was begun goes on in buffers that the caller believes to be its own.
TEST_P(Unwinding, AListThatCannotBeBegunAsAWholeFailsOnAllRanks) {
  auto ranks = make(2, kTimeout);
  on_all(ranks, [](Communicator& comm) {
    std::vector<float> data(10);
    if (comm.rank() == 0) {
      EXPECT_THROW(comm.recv(data, {.from = 1}).wait(), OutOfMemory);
      return;
    }
    // The second part needs as much scratch as it has bytes, which nobody has.
    const View list[] = {as_output(data), View(reinterpret_cast<std::byte*>(data.data()),
                                               std::size_t{1} << 52, DType::f32)};
    EXPECT_THROW((void)comm.all_reduce_coalesced(list, {.factor = 0.5}), OutOfMemory);
    EXPECT_THROW(comm.barrier().wait(), OutOfMemory);
  });
}

}  // namespace
}  // namespace stretto::testing
