// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/reducer.h"

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/run_ranks.h"

namespace stretto {
namespace {

std::span<float> floats(const Reducer& reducer, std::size_t index) {
  const auto bytes = reducer.gradient_bytes(index);
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

void fill(const Reducer& reducer, std::size_t index, float value) {
  for (float& element : floats(reducer, index)) element = value;
}

std::vector<GradientDescription> three_gradients() {
  return {{"a", DType::f32, 100}, {"b", DType::f32, 3}, {"c", DType::f32, 1000}};
}

// Small limits, so that the three gradients make three buckets: {c}, {b, a} or so.
ReducerOptions small_buckets() { return {.bucket_bytes = {400}}; }

// Runs a step in which rank r's gradient i is full of r * 10 + i; the order is `order`.
void run_step(Reducer& reducer, int rank, const std::vector<std::size_t>& order) {
  for (const std::size_t index : order) {
    fill(reducer, index, static_cast<float>(rank * 10) + static_cast<float>(index));
    reducer.mark_ready(index);
  }
  reducer.finalize();
}

void expect_mean(const Reducer& reducer, int size) {
  for (std::size_t i = 0; i < reducer.gradient_count(); ++i) {
    const float mean = static_cast<float>(size - 1) * 5 + static_cast<float>(i);
    for (const float element : floats(reducer, i)) ASSERT_EQ(element, mean) << "gradient " << i;
  }
}

TEST(Reducer, EveryRankGetsTheMeanWhateverTheOrderOfReadiness) {
  run_ranks(3, [](Communicator& communicator) {
    Reducer reducer(communicator, three_gradients(), small_buckets());
    const int rank = communicator.rank().value();
    const std::vector<std::vector<std::size_t>> orders = {{2, 1, 0}, {0, 1, 2}, {1, 0, 2}};
    for (int step = 0; step < 3; ++step) {
      run_step(reducer, rank, orders[static_cast<std::size_t>((rank + step) % 3)]);
      expect_mean(reducer, 3);
      reducer.rebuild();
    }
  });
}

TEST(Reducer, GradientsStandOnCacheLinesOfTheirOwnInBucketsOfOneDType) {
  run_ranks(1, [](Communicator& communicator) {
    const Reducer reducer(communicator,
                          {{"a", DType::f32, 3}, {"b", DType::f64, 5}, {"c", DType::f32, 0}});
    EXPECT_EQ(reducer.plan().size(), 2u);
    for (std::size_t i = 0; i < 3; ++i) {
      const View view = reducer.gradient(i).view;
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % 64, 0u);
    }
    EXPECT_EQ(reducer.gradient(1).view.dtype, DType::f64);
    EXPECT_EQ(reducer.gradient(1).view.count, 5u);
  });
}

TEST(Reducer, TheFirstPlanExpectsTheReverseOrder) {
  run_ranks(1, [](Communicator& communicator) {
    const Reducer reducer(communicator, three_gradients(), small_buckets());
    ASSERT_EQ(reducer.plan().size(), 2u);
    EXPECT_EQ(reducer.plan()[0].gradients, (std::vector<std::size_t>{2}));
    EXPECT_EQ(reducer.plan()[1].gradients, (std::vector<std::size_t>{1, 0}));
  });
}

TEST(Reducer, RebuildAdoptsTheOrderOfRankZeroOnceAndKeepsTheValues) {
  run_ranks(2, [](Communicator& communicator) {
    Reducer reducer(communicator, three_gradients(), small_buckets());
    const int rank = communicator.rank().value();
    EXPECT_FALSE(reducer.rebuild());
    const GradientStorage old = reducer.gradient(0);
    run_step(reducer, rank,
             rank == 0 ? std::vector<std::size_t>{0, 2, 1} : std::vector<std::size_t>{1, 2, 0});
    EXPECT_TRUE(reducer.rebuild());
    ASSERT_EQ(reducer.plan().size(), 3u);
    EXPECT_EQ(reducer.plan()[0].gradients, (std::vector<std::size_t>{0}));
    EXPECT_EQ(reducer.plan()[1].gradients, (std::vector<std::size_t>{2}));
    EXPECT_EQ(reducer.plan()[2].gradients, (std::vector<std::size_t>{1}));
    expect_mean(reducer, 2);
    // Whoever holds the old storage may still read it.
    EXPECT_NE(old.view.data, reducer.gradient(0).view.data);
    EXPECT_EQ(*reinterpret_cast<const float*>(old.view.data), 5.0f);
    run_step(reducer, rank, {2, 1, 0});
    expect_mean(reducer, 2);
    EXPECT_FALSE(reducer.rebuild());
  });
}

TEST(Reducer, ThreadsMayMarkDifferentGradients) {
  run_ranks(2, [](Communicator& communicator) {
    std::vector<GradientDescription> gradients;
    for (int i = 0; i < 64; ++i) gradients.push_back({std::to_string(i), DType::f32, 64});
    Reducer reducer(communicator, gradients, {.bucket_bytes = {512}});
    const int rank = communicator.rank().value();
    for (int step = 0; step < 20; ++step) {
      std::vector<std::thread> threads;
      for (std::size_t t = 0; t < 4; ++t) {
        threads.emplace_back([&reducer, rank, t] {
          for (std::size_t i = t; i < 64; i += 4) {
            fill(reducer, i, static_cast<float>(rank * 10) + static_cast<float>(i));
            reducer.mark_ready(i);
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      reducer.finalize();
      expect_mean(reducer, 2);
    }
  });
}

// What `call` throws; empty if it throws nothing.
template <class Exception>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Exception& exception) {
    return exception.what();
  }
  return {};
}

TEST(Reducer, MarkingTwiceNamesTheGradient) {
  run_ranks(1, [](Communicator& communicator) {
    Reducer reducer(communicator, three_gradients());
    reducer.mark_ready(1);
    const auto text = message_of<InvalidArgument>([&] { reducer.mark_ready(1); });
    EXPECT_NE(text.find("gradient b became ready a second time"), std::string::npos) << text;
  });
}

TEST(Reducer, MissingGradientsAreNamedHereAndOnTheRanksThatWait) {
  run_ranks(2, [](Communicator& communicator) {
    Reducer reducer(communicator, three_gradients(), small_buckets());
    const bool forgets = communicator.rank() == Rank(1);
    // The other rank finds out wherever it is by then: in mark_ready() or in finalize().
    const auto step = [&] {
      reducer.mark_ready(2);
      if (!forgets) {
        reducer.mark_ready(1);
        reducer.mark_ready(0);
      }
      reducer.finalize();
    };
    const std::string expected = "2 parameters got no gradient on rank 1: a, b.";
    const auto text = forgets ? message_of<InvalidArgument>(step) : message_of<Aborted>(step);
    EXPECT_NE(text.find(expected), std::string::npos) << text;
    // The first failure is repeated for ever.
    EXPECT_EQ(message_of<Error>([&] { reducer.mark_ready(0); }), text);
    EXPECT_EQ(message_of<Error>([&] { reducer.rebuild(); }), text);
  });
}

TEST(Reducer, AnExceptionThatDestroysItIsToldToTheOtherRanks) {
  run_ranks(2, [](Communicator& communicator) {
    const bool throws = communicator.rank() == Rank(1);
    const auto step = [&] {
      Reducer reducer(communicator, three_gradients(), small_buckets());
      reducer.mark_ready(0);  // The last to be reduced: no bucket has left yet.
      if (throws) throw std::runtime_error("no more data");
      reducer.mark_ready(1);
      reducer.mark_ready(2);
      reducer.finalize();
    };
    if (throws) {
      EXPECT_EQ(message_of<std::runtime_error>(step), "no more data");
      return;
    }
    const auto text = message_of<Aborted>(step);
    EXPECT_NE(text.find("backward pass of rank 1 when 1 of 3 gradients"), std::string::npos)
        << text;
  });
}

TEST(Reducer, StatisticsAddUp) {
  run_ranks(2, [](Communicator& communicator) {
    Reducer reducer(communicator, three_gradients(), small_buckets());
    reducer.mark_ready(2);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    reducer.mark_ready(0);
    reducer.mark_ready(1);
    reducer.finalize();
    const StepStatistics& step = reducer.last_step();
    EXPECT_EQ(step.ready_seconds[2], 0);
    EXPECT_GE(step.ready_seconds[0], 0.005);
    EXPECT_GE(step.ready_seconds[1], step.ready_seconds[0]);
    EXPECT_GE(step.backward_seconds, step.ready_seconds[1]);
    EXPECT_GE(step.communication_seconds, 0.005);
    EXPECT_GE(step.exposed_seconds, 0);
    EXPECT_LT(step.exposed_seconds, 0.5);
  });
}

TEST(Reducer, RefusesWhatHasNoMeaning) {
  run_ranks(1, [](Communicator& communicator) {
    EXPECT_THROW(Reducer(communicator, {}), InvalidArgument);
    EXPECT_THROW(Reducer(communicator, three_gradients(), {.bucket_bytes = {}}), InvalidArgument);
    EXPECT_THROW(Reducer(communicator, {{"mask", DType::boolean, 4}}), InvalidArgument);
  });
}

}  // namespace
}  // namespace stretto
