// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <memory>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/reducer/reducer.h"
#include "tests/support/failures.h"
#include "tests/support/run_ranks.h"

// A bucket's hook is finished as soon as the bucket is reduced, not at the end of the step.
namespace stretto {
namespace {

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
    step.reducer.mark_ready(0);  // Its turn comes after that of gradient 1.
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

// Of the host, but a bucket's reduction cannot be ended.
class FailingMemory final : public BucketMemory {
 public:
  Memory allocate(Communicator& communicator, std::size_t bytes) override {
    return host_buckets().allocate(communicator, bytes);
  }
  Memory allocate_copy(std::size_t bytes) override { return host_buckets().allocate_copy(bytes); }
  void copy(ByteSpan to, ConstByteSpan from) override { host_buckets().copy(to, from); }
  void convert(const View& to, const ConstView& from) override { host_buckets().convert(to, from); }
  void clear(ByteSpan bytes) override { host_buckets().clear(bytes); }
  bool is_zero(ConstByteSpan bytes) const override { return host_buckets().is_zero(bytes); }
  void publish() override {}
  Status end(Work& work) override {
    const Status status = host_buckets().end(work);
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

}  // namespace
}  // namespace stretto
