// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Collectives that a CUDA graph captures, and streams that a program names. NCCL and the device are
// a double, which runs the work of a graph in any order that the graph allows.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <span>
#include <thread>

#include "stretto/base/error.h"
#include "tests/nccl/on_stream.h"
#include "tests/support/double_ranks.h"
#include "tests/support/failures.h"
#include "tests/support/soon.h"

namespace stretto::testing {
namespace {

using std::chrono::milliseconds;

class NcclDoubleGraphs : public WithDouble {
 protected:
  void TearDown() override { EXPECT_FALSE(Double::get().control().has_spoiled_capture); }
};

// The ranks' values are 1 and 2 times a number, so sums are 3 times it. Work of the program beside
// a collective stays beside it, and work behind wait() runs after it.
TEST_F(NcclDoubleGraphs, CollectivesRunWheneverTheGraphDoes) {
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const OnStream program(rank);
    const auto own = static_cast<float>(rank.rank().value() + 1);
    const View given = program.numbers(100), sum = program.numbers(100);
    const View beside = program.numbers(100), result = program.numbers(100),
               one = program.numbers(100, 1);
    const auto graph = program.capture([&] {
      program.add(given, one);
      Work work = rank.all_reduce(given, sum, {.factor = 2});
      EXPECT_TRUE(work.is_captured());
      {  // Work behind another stream is not in the graph.
        const OnStream aside(rank);
        const StreamGuard other(aside.stream());
        const View now = aside.numbers(3, own);
        rank.all_reduce(now).wait();
        EXPECT_EQ(reach(now)[0], 3);
      }
      EXPECT_EQ(work.operation(), "all_reduce");
      EXPECT_EQ(work.number(), 1);
      program.add(beside, one);
      work.wait();
      EXPECT_TRUE(work.done());
      program.add(result, sum);
      program.add(result, beside);
    });
    ASSERT_TRUE(graph->status().ok()) << graph->status().message();
    EXPECT_EQ(reach(sum)[7], 0);  // Nothing has run yet.
    float expected = 0;
    for (int round = 1; round <= 20; ++round) {
      const auto value = static_cast<float>(round);
      OnStream::set(given, own * value);
      // On the devices of all ranks, work outside the graph runs before it or after it.
      const StreamGuard on_stream(program.stream());
      const View before = program.numbers(3, own);
      Work work = rank.all_reduce(before);
      ASSERT_TRUE(work.wait_on_device().ok());
      graph->launch(program.stream());
      const View data = program.numbers(3, own);
      rank.all_reduce(data).wait();
      EXPECT_EQ(reach(data)[0], 3);
      ASSERT_TRUE(program.finish());
      EXPECT_EQ(reach(before)[0], 3);
      expected += 2 * (3 * value + 2) + value;
      EXPECT_EQ(reach(result)[99], expected) << round;
    }
  });
}

// Copies that a collective makes of its input belong to the graph, whatever else runs.
TEST_F(NcclDoubleGraphs, AllCollectivesAndTheirScratchAreInTheGraph) {
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const OnStream program(rank);
    const auto own = static_cast<float>(rank.rank().value() + 1);
    const View exchanged = program.numbers(2), gathered = program.numbers(2);
    const View part = program.numbers(1), told = program.numbers(4), eager = program.numbers(2);
    const std::array list = {program.numbers(1), program.numbers(3)};
    const auto graph = program.capture([&] {
      rank.all_to_all(exchanged, exchanged).wait();
      rank.all_gather(part, gathered).wait();
      rank.broadcast(told, {.root = 1}).wait();
      std::vector<Work> two;
      for (const View& each : list) two.push_back(rank.all_reduce(each));
      Work both = Work::all(std::move(two));
      EXPECT_TRUE(both.is_captured());
      both.wait();
      rank.all_reduce_coalesced(list).wait();
      rank.reduce_scatter(gathered, part).wait();
    });
    rank.barrier().wait();
    const int allocations = Double::get().control().allocations;
    for (int round = 1; round <= 5; ++round) {
      const auto value = own * static_cast<float>(round);
      for (const View& view : {exchanged, part, told, list[0], list[1], eager}) {
        OnStream::set(view, value);
      }
      rank.barrier().wait();
      graph->launch(program.stream());
      {
        const StreamGuard behind(program.stream());
        rank.all_to_all(eager, eager).wait();
      }
      ASSERT_TRUE(program.finish());
      const auto unit = static_cast<float>(round);
      for (const View& view : {exchanged, gathered, eager}) {
        EXPECT_EQ(reach(view)[0], unit);
        EXPECT_EQ(reach(view)[1], 2 * unit);
      }
      EXPECT_EQ(reach(told)[3], 2 * unit);
      EXPECT_EQ(reach(list[1])[2], 6 * unit);
      EXPECT_EQ(reach(part)[0], 2 * value);
    }
    // Operations outside the graph have allocated their own scratch memory, once on each rank.
    rank.barrier().wait();
    EXPECT_EQ(Double::get().control().allocations, allocations + 2);
  });
}

// As in M2 and M1, but while the collective is captured. The driver reports that the graph is
// invalid.
TEST_F(NcclDoubleGraphs, DisagreementIsToldWhileTheGraphIsCaptured) {
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const OnStream program(rank);
    const View data = program.numbers(9);
    const View some = {data.data, rank.rank() == 0 ? 8u : 9u, DType::f32};
    std::string text;
    const auto graph =
        program.capture([&] { text = error_of<Mismatch>([&] { (void)rank.all_reduce(some); }); });
    expect_contains(text, "all_reduce(sum f32 [8])");
    expect_contains(text, "all_reduce(sum f32 [9])");
  });
  EXPECT_EQ(Double::get().control().launches, 0);
}

TEST_F(NcclDoubleGraphs, ARankThatDoesNotCaptureIsToldThatOthersDo) {
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const OnStream program(rank);
    const View data = program.numbers(8);
    std::string text;
    const auto run = [&] { text = error_of<Mismatch>([&] { rank.all_reduce(data).wait(); }); };
    if (rank.rank() == 0) {
      (void)program.capture(run);
    } else {
      run();
    }
    expect_contains(text, "by what is for memory of devices, in a CUDA graph");
  });
  EXPECT_EQ(Double::get().control().launches, 0);
}

// This holds although no operation is in flight: the graph would otherwise wait on the device for
// ever.
TEST_F(NcclDoubleGraphs, ADeathEndsAGraphThatRuns) {
  DoubleRanks ranks({.size = 2});
  std::atomic<bool> launched = false, captured = false;
  OnceTrue death([&] { return launched && captured; }, [&] { ranks.kill(1); });
  ranks.on_all([&](Communicator& rank) {
    const OnStream program(rank);
    const View data = program.numbers(8);
    const auto graph = program.capture([&] { rank.all_reduce(data).wait(); });
    if (rank.rank() == 1) return captured.store(true);
    graph->launch(program.stream());
    launched = true;
    EXPECT_TRUE(program.finish());
    EXPECT_EQ(failure_of<PeerLost>([&] { rank.barrier().wait(); }).rank(), Rank(1));
  });
  death.join();
}

// NCCL's abort returns only when the graph is gone.
TEST_F(NcclDoubleGraphs, AGraphThatLivesHoldsUpNeitherFailuresNorMemory) {
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const OnStream program(rank);
    const View data = program.numbers(8);
    auto memory = rank.allocate<float>(8, rank.device());
    rank.barrier().wait();
    const auto graph = program.capture([&] { rank.all_reduce(data).wait(); });
    rank.barrier().wait();
    Double::get().change([](auto& control) { control.stalls = true; });
    const TimePoint begun = Clock::now();
    (void)failure_of([&] { rank.all_reduce(data, {.timeout = milliseconds(300)}).wait(); });
    memory = {};
    EXPECT_LT(Clock::now() - begun, std::chrono::seconds(8));
  });
}

// Each capture uses the same stream, and the program keeps Works of the previous capture.
TEST_F(NcclDoubleGraphs, WorksOfOneGraphDoNotSpoilTheNext) {
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const OnStream program(rank);
    const View data = program.numbers(8);
    Work waited_for, dropped;
    const auto first = program.capture([&] {
      waited_for = rank.all_reduce(data);
      EXPECT_TRUE(waited_for.wait_on_device().ok());
    });
    EXPECT_TRUE(first->status().ok());
    EXPECT_FALSE(program.capture([&] { dropped = rank.all_reduce(data); })->status().ok());
    const auto third = program.capture([&] {
      waited_for = rank.all_reduce(data);
      dropped = rank.all_reduce(data);
      waited_for.wait();
      dropped.wait();
    });
    EXPECT_TRUE(third->status().ok()) << third->status().message();
  });
}

// The thread that captures may also advance an operation that began outside the capture.
TEST_F(NcclDoubleGraphs, WhatFollowsAnOperationIsNotCapturedByWhoGoesOnWithIt) {
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const OnStream program(rank);
    const View first = program.numbers(8, 1), second = program.numbers(8, 1);
    const View captured = program.numbers(8);
    const auto part = rank.split({.color = 0});
    Work chain = rank.all_reduce(first).then([&] { return part->all_reduce(second); });
    const auto graph = program.capture([&] {
      rank.all_reduce(captured).wait();
      chain.wait();
    });
    EXPECT_TRUE(graph->status().ok()) << graph->status().message();
    EXPECT_EQ(reach(second)[7], 2);
  });
}

// Operations from before the capture are waited for on the host. For operations of the graph, any
// stream of the capture may wait.
TEST_F(NcclDoubleGraphs, AnyStreamOfTheCaptureWaits) {
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const OnStream program(rank), other(rank);
    const View before = program.numbers(8, 1), sum = program.numbers(8), twice = program.numbers(8);
    Work eager = rank.all_reduce(before);
    const auto graph = program.capture([&] {
      EXPECT_TRUE(eager.wait_on_device().ok());
      Work work = rank.all_reduce(sum);
      Work behind;
      {
        const StreamGuard on_other(other.stream());
        EXPECT_TRUE(work.wait_on_device().ok());
        other.add(twice, sum);
        behind = rank.all_reduce(twice);
      }
      behind.wait();
    });
    EXPECT_EQ(reach(before)[0], 2);
    ASSERT_TRUE(graph->status().ok()) << graph->status().message();
    for (int round = 1; round <= 10; ++round) {
      OnStream::set(sum, 1);
      OnStream::set(twice, 0);
      ASSERT_TRUE(program.run(rank, *graph));
      EXPECT_EQ(reach(twice)[7], 4);
    }
  });
}

TEST_F(NcclDoubleGraphs, WhatFollowsAnOperationOfTheGraphIsBehindIt) {
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const OnStream program(rank);
    const View data = program.numbers(8);
    const auto part = rank.split({.color = 0});
    Work chain;
    const auto graph = program.capture([&] {
      chain = rank.all_reduce(data).then([&] { return part->all_reduce(data); });
      EXPECT_TRUE(chain.wait_on_device().ok());
    });
    ASSERT_TRUE(graph->status().ok()) << graph->status().message();
    EXPECT_TRUE(chain.wait_status().ok());  // It has been waited for.
    for (int round = 1; round <= 10; ++round) {
      OnStream::set(data, 1);
      ASSERT_TRUE(program.run(rank, *graph));
      EXPECT_EQ(reach(data)[7], 4);
    }
  });
}

// Ranks that call shrink() need not have been told that the others are lost.
TEST_F(NcclDoubleGraphs, ShrinkEndsAGraphThatRuns) {
  DoubleRanks ranks({.size = 3});
  ranks.on_all([&](Communicator& rank) {
    const OnStream program(rank);
    const View data = program.numbers(8);
    const auto graph = program.capture([&] { rank.all_reduce(data).wait(); });
    rank.barrier().wait();
    if (rank.rank() == 2) {
      EXPECT_THROW((void)rank.shrink(), Aborted);
      return;
    }
    graph->launch(program.stream());
    EXPECT_EQ(rank.shrink({2})->size(), 2);
    EXPECT_TRUE(program.finish());
  });
}

// The end of the communicator waits for NCCL, which waits for the graph.
TEST_F(NcclDoubleGraphs, OthersGoOnWhileACommunicatorEndsThatAGraphHolds) {
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const OnStream program(rank);
    const View data = program.numbers(8);
    auto part = rank.split({.color = 0});
    auto graph = program.capture([&] { part->all_reduce(data).wait(); });
    rank.barrier().wait();
    std::atomic<bool> has_ended = false;
    std::thread ends([&] {
      part.reset();
      has_ended = true;
    });
    for (int i = 0; i < 50; ++i) {
      rank.all_reduce(data).wait();
      std::this_thread::sleep_for(milliseconds(2));
    }
    EXPECT_FALSE(has_ended);
    graph.reset();
    ends.join();
  });
}

TEST_F(NcclDoubleGraphs, AWorkThatIsDroppedIsWaitedFor) {
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const OnStream program(rank);
    const View data = program.numbers(8);
    const auto graph = program.capture([&] { (void)rank.all_reduce(data); });
    EXPECT_TRUE(graph->status().ok()) << graph->status().message();
    // The driver reports that a Work that outlives the capture was not joined to the captured
    // stream.
    Work kept;
    const auto unjoined = program.capture([&] { kept = rank.all_reduce(data); });
    EXPECT_FALSE(unjoined->status().ok());
    EXPECT_FALSE(kept.wait_status().ok());
    rank.all_reduce(data).wait();
  });
}

TEST_F(NcclDoubleGraphs, WhatAGraphCannotHoldIsRefused) {
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const OnStream program(rank);
    const View data = program.numbers(8);
    std::vector<float> host(3);
    const std::vector<std::size_t> counts = {2, 1};
    const auto graph = program.capture([&] {
      const std::span own = std::span(host).first(rank.rank() == 0 ? 2 : 1);
      expect_contains(
          error_of<InvalidArgument>([&] { (void)rank.gather(own, host, {.counts = counts}); }),
          "a CUDA graph is being captured, and some buffers lie in memory of the host");
      expect_contains(
          error_of<InvalidArgument>([&] { (void)rank.allocate<float>(8, rank.device()); }),
          "a CUDA graph is being captured");
      rank.all_reduce(host).wait();  // It uses only the host, and runs at once.
      rank.all_reduce(data).wait();
      const OnStream aside(rank);
      (void)aside.capture([&] {
        expect_contains(error_of<InvalidArgument>([&] { (void)rank.all_reduce(data); }),
                        "another CUDA graph is capturing operations of this communicator");
      });
    });
    EXPECT_TRUE(graph->status().ok()) << graph->status().message();
  });
}

// Rank 1 comes after the second capture was refused.
TEST_F(NcclDoubleGraphs, ASecondCaptureIsRefusedWhileTheFirstWaitsForARank) {
  DoubleRanks ranks({.size = 2});
  std::atomic<bool> captures = false, is_refused = false;
  ranks.on_all([&](Communicator& rank) {
    const OnStream program(rank), aside(rank);
    const View data = program.numbers(8);
    const auto capture_aside = [&] {
      EXPECT_TRUE(comes_true([&] { return captures.load(); }));
      std::this_thread::sleep_for(milliseconds(200));
      (void)aside.capture([&] {
        expect_contains(error_of<InvalidArgument>([&] { (void)rank.all_reduce(data); }),
                        "another CUDA graph is capturing operations of this communicator");
      });
      is_refused = true;
    };
    std::thread other;
    if (rank.rank() == 0) {
      other = std::thread(capture_aside);
    } else {
      EXPECT_TRUE(comes_true([&] { return is_refused.load(); }));
    }
    const auto graph = program.capture([&] {
      if (rank.rank() == 0) captures = true;
      rank.all_reduce(data).wait();
    });
    EXPECT_TRUE(graph->status().ok()) << graph->status().message();
    if (other.joinable()) other.join();
  });
}

// Freeing it would invalidate the graph.
TEST_F(NcclDoubleGraphs, MemoryThatIsFreedDuringACaptureGoesBehindIt) {
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const OnStream program(rank);
    auto memory = rank.allocate<float>(8, rank.device());
    rank.barrier().wait();
    const auto graph = program.capture([&] { memory = {}; });
    EXPECT_TRUE(graph->status().ok()) << graph->status().message();
    rank.barrier().wait();
    EXPECT_EQ(Double::get().control().made_blocks, 2);
    rank.barrier().wait();
    memory = rank.allocate<float>(8, rank.device());
    rank.barrier().wait();
    EXPECT_EQ(Double::get().control().made_blocks, 2);
    rank.barrier().wait();  // It is freed after both ranks have looked.
  });
}

TEST_F(NcclDoubleGraphs, OperationsBeginBehindTheStreamThatIsNamed) {
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const OnStream program(rank);
    const View data = program.numbers(8, 1), one = program.numbers(8, 1);
    const StreamGuard on_stream(program.stream());
    for (int round = 1; round <= 3; ++round) {
      program.sleep(milliseconds(20));
      program.add(data, one);
      Work work = rank.all_reduce(data);
      EXPECT_FALSE(work.is_captured());
      ASSERT_TRUE(work.wait_on_device().ok());
      program.add(data, one);  // Behind the sum.
      ASSERT_TRUE(program.finish());
      work.wait();
    }
    // 1 -> 2, 4, 5 -> 6, 12, 13 -> 14, 28, 29.
    EXPECT_EQ(reach(data)[7], 29);
  });
}

TEST(StreamGuard, IsOfItsThreadAndGivesBackWhatWasThere) {
  int one = 0, other = 0;
  EXPECT_EQ(StreamGuard::current(), nullptr);
  {
    const StreamGuard outer(&one);
    {
      const StreamGuard inner(&other);
      EXPECT_EQ(StreamGuard::current(), &other);
      std::thread([] { EXPECT_EQ(StreamGuard::current(), nullptr); }).join();
    }
    EXPECT_EQ(StreamGuard::current(), &one);
  }
  EXPECT_EQ(StreamGuard::current(), nullptr);
}

}  // namespace
}  // namespace stretto::testing
