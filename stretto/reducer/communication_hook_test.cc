// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/communication_hook.h"

#include <barrier>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/reducer/compressed_reduction.h"
#include "stretto/reducer/reducer.h"
#include "tests/support/expect_contains.h"
#include "tests/support/failures.h"
#include "tests/support/gradients.h"
#include "tests/support/own_timeout.h"
#include "tests/support/run_ranks.h"

namespace stretto {
namespace {

using testing::compressing;
using testing::floats;
using testing::message_of;
using testing::OwnTimeout;
using testing::three_gradients;

// Runs a step in which every element of rank r is `value` + r.
void run_step(Reducer& reducer, int rank, float value) {
  for (std::size_t i = reducer.gradient_count(); i-- > 0;) {
    for (float& element : floats(reducer, i)) element = value + static_cast<float>(rank);
    reducer.mark_ready(i);
  }
  reducer.finalize();
}

// Records the buckets that it gets, and reduces them.
class Recorder : public PlainReduction {
 public:
  std::string name() const override { return "recorder"; }
  Work start(Communicator& communicator, const FullBucket& bucket) override {
    EXPECT_EQ(bucket.gradients.size(), bucket.gradient_views.size());
    EXPECT_EQ(bucket.is_last(), bucket.index == 1);
    for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
      EXPECT_EQ(bucket.gradient_views[i].count, three_gradients()[bucket.gradients[i]].count);
      started.push_back(bucket.gradients[i]);
    }
    dtype = bucket.view.dtype;
    return PlainReduction::start(communicator, bucket);
  }
  void finish(const FullBucket& bucket) override { finished.push_back(bucket.index); }

  std::vector<std::size_t> started;
  std::vector<std::size_t> finished;
  DType dtype = DType::u8;
};

TEST(CommunicationHook, SeesBucketsGradientsAndTheLastOne) {
  run_ranks(2, [](Communicator& communicator) {
    const auto recorder = std::make_shared<Recorder>();
    Reducer reducer(communicator, three_gradients(), {.bucket_bytes = {400}, .hook = recorder});
    run_step(reducer, communicator.rank().value(), 1);
    EXPECT_EQ(recorder->started, (std::vector<std::size_t>{2, 1, 0}));
    EXPECT_EQ(recorder->finished, (std::vector<std::size_t>{0, 1}));
    for (const float element : floats(reducer, 0)) EXPECT_EQ(element, 1.5f);
  });
}

// bf16 has 8 binary digits, so 257.5 becomes 258.
TEST(CommunicationHook, HalvedGradientsAreRoundedOnceAndPassThroughOtherHooks) {
  run_ranks(2, [](Communicator& communicator) {
    const auto recorder = std::make_shared<Recorder>();
    const auto hook = std::make_shared<Bf16Reduction>(recorder);
    EXPECT_EQ(hook->name(), "bf16, then recorder");
    Reducer reducer(communicator, three_gradients(), {.bucket_bytes = {400}, .hook = hook});
    for (int step = 0; step < 3; ++step) {
      run_step(reducer, 0, communicator.rank() == Rank(0) ? 256.0f : 258.0f);
      for (std::size_t i = 0; i < 3; ++i) {
        for (const float element : floats(reducer, i)) ASSERT_EQ(element, 256.0f);
      }
      reducer.rebuild();
    }
    EXPECT_EQ(recorder->dtype, DType::bf16);
  });
}

TEST(CommunicationHook, F16ShowsOverflowAsInfinityAndNothingElse) {
  run_ranks(2, [](Communicator& communicator) {
    Reducer reducer(communicator, three_gradients(), {.hook = std::make_shared<F16Reduction>()});
    // The sum would not fit into f16, the mean does.
    run_step(reducer, 0, 60000.0f);
    for (const float element : floats(reducer, 2)) ASSERT_EQ(element, 60000.0f);
    run_step(reducer, 0, 70000.0f);
    for (const float element : floats(reducer, 2)) ASSERT_TRUE(std::isinf(element));
  });
}

// Rank 1 catches the exception, keeps its communicator and reducer, and does nothing more.
TEST(CommunicationHook, OneThatRefusesABucketOnOneRankEndsTheStepOnAll) {
  struct Refusing : PlainReduction {
    Work start(Communicator& communicator, const FullBucket& bucket) override {
      if (communicator.rank() == Rank(1) && bucket.is_last()) {
        throw InvalidArgument(Status(StatusCode::invalid_argument, "not this bucket"));
      }
      return PlainReduction::start(communicator, bucket);
    }
  };
  std::barrier has_failed(2);
  run_ranks(2, [&](Communicator& communicator, int rank) {
    Reducer reducer(communicator, three_gradients(),
                    {.bucket_bytes = {400}, .hook = std::make_shared<Refusing>()});
    const Status status = testing::failure_of([&] { run_step(reducer, 0, 1); });
    EXPECT_EQ(status.code(), rank == 1 ? StatusCode::invalid_argument : StatusCode::aborted);
    expect_contains(std::string(status.message()), "not this bucket");
    has_failed.arrive_and_wait();
  });
}

TEST(CommunicationHook, AnObjectReducesForOneAtATime) {
  run_ranks(2, [](Communicator& communicator) {
    const auto inner = std::make_shared<Recorder>();
    const auto outer = std::make_shared<Bf16Reduction>(inner);
    const auto build = [&](std::shared_ptr<CommunicationHook> hook,
                           std::shared_ptr<const void> owner = nullptr) {
      return std::make_unique<Reducer>(
          communicator, three_gradients(),
          ReducerOptions{.hook = std::move(hook), .hook_owner = std::move(owner)});
    };
    const auto refusal = [&](std::shared_ptr<CommunicationHook> hook) {
      return message_of<InvalidArgument>([&] { (void)build(hook); });
    };
    auto owner = std::make_shared<int>();
    auto first = build(outer, owner);
    EXPECT_NO_THROW((void)build(outer, owner)) << "of the same model";
    expect_contains(refusal(outer), "the communication hook 'recorder' reduces the gradients of");
    expect_contains(refusal(inner), "give each model a hook of its own");
    expect_contains(refusal(std::make_shared<F16Reduction>(inner)), "'recorder'");
    first.reset();
    owner.reset();
    const auto second = build(outer);
    expect_contains(refusal(inner), "give each model a hook of its own");
    const auto plain = std::make_shared<PlainReduction>();
    const auto third = build(plain);
    EXPECT_NO_THROW((void)build(plain)) << "it remembers nothing";
  });
}

TEST(CommunicationHook, TheTimeoutHoldsForWhatHooksCompareWhenTheyAreAttached) {
  OwnTimeout timeout;
  run_ranks(2, [&](Communicator& communicator) {
    timeout.expect_of(communicator, [&] {
      Reducer(communicator, three_gradients(),
              {.hook = std::make_shared<Bf16Reduction>(compressing()),
               .timeout = OwnTimeout::kTimeout});
    });
  });
}

TEST(CommunicationHook, OneAroundAnotherIsAsThatWhereItSaysNothingElse) {
  class Remembering : public PlainReduction {
   public:
    std::vector<std::byte> save() const override { return std::vector<std::byte>(2); }
    void load(std::span<const std::byte> state) override { loaded = state.size(); }
    std::size_t loaded = 0;
  };
  const auto inner = std::make_shared<Remembering>();
  DividedReduction outer(MeanDivision::before_sum, std::make_shared<F16Reduction>(inner));
  outer.load(outer.save());
  EXPECT_EQ(inner->loaded, 2u);
  EXPECT_TRUE(outer.finishes_early());
}

TEST(CommunicationHook, StateOfAnotherHookIsRefused) {
  PlainReduction plain;
  EXPECT_TRUE(plain.save().empty());
  EXPECT_NO_THROW(plain.load({}));
  const std::vector<std::byte> state(3);
  EXPECT_THROW(plain.load(state), InvalidArgument);
}

// Otherwise rank 1 would wait for rank 0's bucket, or in the next step for its first one.
TEST(CommunicationHook, OneThatFailsOnOneRankFailsTheStepOnAll) {
  struct Failing : PlainReduction {
    Failing(StatusCode code, bool in_finish) : code(code), in_finish(in_finish) {}
    void fail(Rank rank) const {
      if (rank == Rank(0)) Status(code, "this rank has another one").or_throw();
    }
    Work start(Communicator& communicator, const FullBucket& bucket) override {
      rank = communicator.rank();
      if (!in_finish) fail(rank);
      return PlainReduction::start(communicator, bucket);
    }
    void finish(const FullBucket& bucket) override {
      if (in_finish) fail(rank);
      PlainReduction::finish(bucket);
    }
    const StatusCode code;
    const bool in_finish;
    Rank rank;
  };
  for (const StatusCode code : {StatusCode::out_of_memory, StatusCode::mismatch}) {
    for (const bool in_finish : {false, true}) {
      run_ranks(2, [&](Communicator& communicator) {
        Reducer reducer(communicator, three_gradients(),
                        {.hook = std::make_shared<Failing>(code, in_finish)});
        const Status status = testing::failure_of([&] {
          for (int step = 0; step < 2; ++step) run_step(reducer, 0, 1);
        });
        EXPECT_EQ(status.code(), communicator.rank() == Rank(0) ? code : StatusCode::aborted);
        expect_contains(std::string(status.message()), "this rank has another one");
      });
    }
  }
}

}  // namespace
}  // namespace stretto
