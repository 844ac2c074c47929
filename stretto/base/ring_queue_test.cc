// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/ring_queue.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>

#include "stretto/base/random.h"

namespace stretto {
namespace {

TEST(RingQueueTest, BehavesLikeADeque) {
  RingQueue<int> queue;
  std::deque<int> expected;
  Random random(5);
  for (int i = 0; i < 20000; ++i) {
    // Grows for a while, then shrinks, so that it wraps around at many sizes.
    const bool push = expected.empty() || random.below(100) < (i / 1000 % 2 == 0 ? 60u : 40u);
    if (push) {
      queue.push(i);
      expected.push_back(i);
    } else {
      EXPECT_EQ(queue.front(), expected.front());
      queue.pop();
      expected.pop_front();
    }
    ASSERT_EQ(queue.size(), expected.size());
    ASSERT_EQ(queue.empty(), expected.empty());
    if (i % 97 != 0) continue;
    for (std::size_t n = 0; n < expected.size(); ++n) ASSERT_EQ(queue[n], expected[n]);
  }
}

TEST(RingQueueTest, PoppedItemsAreDestroyedAtOnce) {
  RingQueue<std::shared_ptr<int>> queue;
  const auto item = std::make_shared<int>(1);
  queue.push(item);
  queue.push(nullptr);
  EXPECT_EQ(item.use_count(), 2);
  queue.pop();
  EXPECT_EQ(item.use_count(), 1);
}

}  // namespace
}  // namespace stretto
