// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/reducer/reducer.h"
#include "tests/support/failures.h"
#include "tests/support/gradients.h"
#include "tests/support/run_ranks.h"

// A bucket's hook is finished as soon as the bucket is reduced, not at the end of the step.
namespace stretto {
namespace {

using testing::floats;
using testing::three_gradients;

class Recording : public PlainReduction {
 public:
  void finish(const FullBucket& bucket) override {
    if (refuse_) {
      throw InvalidArgument(Status(StatusCode::invalid_argument, "the hook does not like it"));
    }
    finished.push_back(bucket.index);
  }
  void refuse() { refuse_ = true; }
  std::vector<std::size_t> finished;

 private:
  bool refuse_ = false;
};

struct ThreeBuckets {
  ThreeBuckets(Communicator& communicator, std::shared_ptr<Recording> hook)
      : reducer(communicator, {{"a", DType::f32, 8}, {"b", DType::f32, 8}, {"c", DType::f32, 8}},
                {.bucket_bytes = {32}, .hook = std::move(hook)}) {}
  Reducer reducer;
};

TEST(EarlyFinish, ABucketIsFinishedWhileTheStepGoesOn) {
  run_ranks(1, [](Communicator& communicator) {
    const auto hook = std::make_shared<Recording>();
    ThreeBuckets step(communicator, hook);
    step.reducer.mark_ready(2);
    EXPECT_EQ(hook->finished, (std::vector<std::size_t>{0}));
    step.reducer.mark_ready(0);  // Its bucket's turn comes after that of gradient 1.
    EXPECT_EQ(hook->finished, (std::vector<std::size_t>{0}));
    step.reducer.mark_ready(1);
    EXPECT_EQ(hook->finished, (std::vector<std::size_t>{0, 1, 2}));
    step.reducer.finalize();
    EXPECT_EQ(hook->finished.size(), 3u) << "each once";
  });
}

TEST(EarlyFinish, AllAreFinishedInOrderWhenTheStepHasEnded) {
  run_ranks(3, [](Communicator& communicator) {
    const auto hook = std::make_shared<Recording>();
    ThreeBuckets step(communicator, hook);
    for (int number = 0; number < 5; ++number) {
      hook->finished.clear();
      for (const std::size_t i : {1, 2, 0}) step.reducer.mark_ready(i);
      step.reducer.finalize();
      EXPECT_EQ(hook->finished, (std::vector<std::size_t>{0, 1, 2}));
    }
  });
}

TEST(EarlyFinish, AHookThatThrowsFailsTheStep) {
  run_ranks(1, [](Communicator& communicator) {
    const auto hook = std::make_shared<Recording>();
    ThreeBuckets step(communicator, hook);
    hook->refuse();
    for (const std::size_t i : {2, 1, 0}) step.reducer.mark_ready(i);
    EXPECT_THROW(step.reducer.finalize(), Error);
    EXPECT_TRUE(hook->finished.empty());
  });
}

// Memory in which a bucket's reduction cannot be ended.
class FailingMemory final : public HostBuckets {
 public:
  Status end(Work& work) override {
    const Status status = HostBuckets::end(work);
    if (++ended_ > 1) throw std::runtime_error("the device is lost");
    return status;
  }

 private:
  int ended_ = 0;
};

TEST(EarlyFinish, TheFirstFailureOfAStepIsTold) {
  run_ranks(1, [](Communicator& communicator) {
    const auto hook = std::make_shared<Recording>();
    const auto memory = std::make_shared<FailingMemory>();
    Reducer reducer(communicator, {{"a", DType::f32, 8}, {"b", DType::f32, 8}},
                    {.bucket_bytes = {32}, .hook = hook, .memory = memory});
    hook->refuse();
    for (const std::size_t i : {1, 0}) reducer.mark_ready(i);
    expect_contains(testing::error_of([&] { reducer.finalize(); }), "the hook does not like it");
  });
}

TEST(EarlyFinish, WhatOnReducedThrowsOnOneRankEndsTheTrainingOfAll) {
  run_ranks(2, [](Communicator& communicator, int rank) {
    const auto look = [rank](const FullBucket&) {
      if (rank == 1) throw InvalidArgument(Status(StatusCode::invalid_argument, "not this one"));
    };
    Reducer reducer(communicator, {{"a", DType::f32, 8}}, {.on_reduced = look});
    const auto steps = [&] {
      for (int step = 0; step < 3; ++step) {
        reducer.mark_ready(0);
        reducer.finalize();
      }
    };
    expect_contains(testing::error_of(steps), "not this one");
  });
}

// Memory of which nothing more can be allocated from some time on.
class FullMemory final : public HostBuckets {
 public:
  Memory allocate(Communicator& communicator, std::size_t bytes) override {
    expect_room();
    return HostBuckets::allocate(communicator, bytes);
  }
  Memory allocate_copy(std::size_t bytes) override {
    expect_room();
    return HostBuckets::allocate_copy(bytes);
  }
  std::size_t room = SIZE_MAX;  // The number of allocations that still succeed.

 private:
  void expect_room() {
    if (room == 0) throw std::runtime_error("the device is full");
    --room;
  }
};

// Rank 1 lacks memory to keep gradients that perhaps no rank has used.
TEST(ReducerFailure, MemoryThatOneRankLacksEndsTheStepOnAll) {
  run_ranks(2, [&](Communicator& communicator, int rank) {
    const auto memory = std::make_shared<FullMemory>();
    Reducer reducer(communicator, {{"a", DType::f32, 8}, {"b", DType::f32, 8}},
                    {.bucket_bytes = {32}, .find_unused = true, .memory = memory});
    if (rank == 1) memory->room = 0;
    const auto steps = [&] {
      for (int step = 0; step < 2; ++step) {
        reducer.mark_ready(0);
        reducer.finalize();
        (void)reducer.rebuild();
      }
    };
    if (rank == 1) {
      EXPECT_EQ(testing::message_of<std::runtime_error>(steps), "the device is full");
    } else {
      expect_contains(testing::message_of<Aborted>(steps), "the device is full");
    }
    EXPECT_THROW(reducer.mark_ready(0), Aborted);
  });
}

TEST(ReducerFailure, BucketsThatOneRankCannotFormAnewStayOnAll) {
  for (const bool is_short : {false, true}) {
    run_ranks(2, [&](Communicator& communicator, int rank) {
      const auto memory = std::make_shared<FullMemory>();
      Reducer reducer(communicator, {{"a", DType::f32, 8}, {"b", DType::f32, 8}},
                      {.bucket_bytes = {32}, .memory = memory});
      const float* const first = testing::floats(reducer, 0).data();
      if (is_short && rank == 1) memory->room = 1;  // There is room for one of the two buckets.
      for (int step = 0; step < 20; ++step) {
        for (const std::size_t i : {0, 1}) {
          std::ranges::fill(testing::floats(reducer, i), static_cast<float>(2 * rank + step));
          reducer.mark_ready(i);
        }
        reducer.finalize();
        EXPECT_EQ(testing::floats(reducer, 1).front(), static_cast<float>(1 + step));
        EXPECT_EQ(reducer.rebuild(), step == 0 && !is_short) << step;
        EXPECT_EQ(testing::floats(reducer, 0).data() == first, is_short);
      }
    });
  }
}

TEST(ReducerFailure, BucketsThatCannotBeRestoredLeaveThoseThatAreThere) {
  run_ranks(2, [](Communicator& communicator, int rank) {
    const auto memory = std::make_shared<FullMemory>();
    Reducer reducer(communicator, three_gradients(), {.bucket_bytes = {32}, .memory = memory});
    const reducer::BucketOrder before = reducer.bucket_order();
    reducer::BucketOrder other = before;
    std::ranges::reverse(other.gradients);
    memory->room = 1;
    EXPECT_THROW((void)reducer.restore(other), std::runtime_error);
    EXPECT_EQ(reducer.bucket_order().gradients, before.gradients);
    memory->room = SIZE_MAX;
    for (const bool restores : {false, true}) {
      for (std::size_t i = 0; i < 3; ++i) {
        std::ranges::fill(floats(reducer, i), static_cast<float>(rank) + static_cast<float>(i));
      }
      if (restores) {
        EXPECT_TRUE(reducer.restore(other));
      }
      for (std::size_t i = 0; i < 3; ++i) reducer.mark_ready(i);
      reducer.finalize();
      for (std::size_t i = 0; i < 3; ++i) {
        const float mean = 0.5F + static_cast<float>(i);
        for (const float element : floats(reducer, i)) ASSERT_EQ(element, mean) << "gradient " << i;
      }
    }
  });
}

// Rank 0 shrinks the communicator before rank 1 knows the cause. Their other group goes on.
TEST(ReducerFailure, ThatAnotherRankHasToldOfEndsNoOtherGroup) {
  std::barrier all_done(3);
  run_ranks(3, [&](Communicator& communicator, int rank) {
    const auto pair = communicator.split({.color = rank / 2});
    Reducer reducer(communicator, {{"a", DType::f32, 8}});
    const auto step = [&] {
      reducer.mark_ready(0);
      reducer.finalize();
    };
    if (rank == 1) {
      EXPECT_THROW(step(), Aborted);
    }
    if (rank < 2) {
      EXPECT_EQ(communicator.shrink({2})->size(), 2);
      int ranks = 1;
      pair->all_reduce(std::span(&ranks, 1)).wait();
      EXPECT_EQ(ranks, 2);
    }
    all_done.arrive_and_wait();
  });
}

// Rank 2 has begun a list, lacks memory for the rest of it, and has told the other ranks.
TEST(ReducerFailure, MemoryThatAnotherRankHasLackedEndsNoOtherGroup) {
  std::barrier has_failed(3);
  run_ranks(3, [&](Communicator& communicator, int rank) {
    const auto pair = communicator.split({.color = rank / 2});
    communicator.barrier().wait();  // All ranks have made `pair`; before, it would fail, too.
    if (rank == 2) {
      std::vector<float> large(100'000);
      const View begun = as_output(large), endless(begun.data, std::size_t{1} << 50, begun.dtype);
      const View views[] = {begun, endless};
      EXPECT_THROW(communicator.all_reduce_coalesced(views, {.factor = 0.5}).wait(), OutOfMemory);
      EXPECT_TRUE(communicator.has_failed());
    }
    has_failed.arrive_and_wait();
    if (rank == 2) return;
    Reducer reducer(communicator, {{"a", DType::f32, 8}});
    const auto step = [&] {
      reducer.mark_ready(0);
      reducer.finalize();
    };
    EXPECT_THROW(step(), Error);
    int ranks = 1;
    pair->all_reduce(std::span(&ranks, 1)).wait();
    EXPECT_EQ(ranks, 2);
  });
}

}  // namespace
}  // namespace stretto
