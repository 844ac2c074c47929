// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/base/clock.h"
#include "stretto/base/content_hash.h"
#include "stretto/base/fnv1a.h"
#include "stretto/base/parse_number.h"
#include "stretto/base/printable.h"
#include "stretto/base/random.h"
#include "stretto/base/rank_set.h"
#include "stretto/base/ring_queue.h"

namespace stretto {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

TEST(DeadlineTest, NeverByDefault) {
  const Deadline never;
  EXPECT_FALSE(never.passed());
  EXPECT_GT(never.remaining(), hours(24 * 365));
}

TEST(DeadlineTest, PassesWhenItsTimeHasCome) {
  EXPECT_TRUE(Deadline(Clock::now()).passed());
  EXPECT_TRUE(Deadline::after(milliseconds(-5)).passed());
  EXPECT_EQ(Deadline::after(milliseconds(-5)).remaining(), Duration::zero());
}

TEST(DeadlineTest, CountsDown) {
  const Deadline deadline = Deadline::after(hours(1));
  EXPECT_FALSE(deadline.passed());
  EXPECT_LE(deadline.remaining(), hours(1));
  EXPECT_GT(deadline.remaining(), hours(1) - std::chrono::minutes(1));
}

TEST(DeadlineTest, KnowsWhenItWasSet) {
  const TimePoint before = Clock::now();
  const Deadline deadline = Deadline::after(std::chrono::hours(1));
  EXPECT_GE(deadline.set_at(), before);
  EXPECT_EQ(deadline.time() - deadline.set_at(), std::chrono::hours(1));
  EXPECT_EQ(Deadline(before).set_at(), before);
}

TEST(DeadlineTest, ADurationThatOverflowsTheClockMeansNever) {
  EXPECT_EQ(Deadline::after(Duration::max()).time(), TimePoint::max());
  EXPECT_FALSE(Deadline::after(Duration::max()).passed());
}

TEST(ClockTest, Seconds) { EXPECT_DOUBLE_EQ(seconds(milliseconds(1500)), 1.5); }

TEST(ContentHash, EveryBitOfEveryLengthCounts) {
  for (const std::size_t size : {1u, 7u, 8u, 31u, 32u, 33u, 100u}) {
    std::vector<std::byte> bytes(size);
    std::set<std::uint64_t> seen = {content_hash(bytes)};
    for (std::size_t bit = 0; bit < size * 8; ++bit) {
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_TRUE(seen.insert(content_hash(bytes)).second) << size << " bytes, bit " << bit;
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
  }
}

TEST(ContentHash, LengthCountsWhereContentIsZero) {
  std::set<std::uint64_t> seen;
  for (std::size_t size = 0; size < 200; ++size) {
    EXPECT_TRUE(seen.insert(content_hash(std::vector<std::byte>(size))).second) << size;
  }
}

TEST(ContentHash, OrderOfWordsAndSeedCount) {
  const std::vector<std::uint64_t> a = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<std::uint64_t> b = {5, 6, 7, 8, 1, 2, 3, 4};
  const auto hash = [](const auto& words, std::uint64_t seed) {
    return content_hash(std::as_bytes(std::span(words)), seed);
  };
  EXPECT_NE(hash(a, 0), hash(b, 0));
  EXPECT_NE(hash(a, 0), hash(a, 1));
  EXPECT_EQ(hash(a, 7), hash(std::vector<std::uint64_t>(a), 7));
}

// Messages and saved states contain these hashes. New values would need new versions of both.
TEST(ContentHash, ItsValuesStay) {
  std::vector<std::byte> bytes(1000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + 1);
  const auto hash_of = [&](std::size_t length, std::uint64_t seed) {
    return content_hash(std::span(bytes).first(length), seed);
  };
  EXPECT_EQ(hash_of(0, 0), 0x9f84450e85871089u);
  EXPECT_EQ(hash_of(33, 0), 0xf34b2a979519d9eeu);
  EXPECT_EQ(hash_of(33, 7), 0x0a4545f1088a6e11u);
  EXPECT_EQ(hash_of(1000, 7), 0x1fe8da9ce58cc196u);
}

TEST(ParseNumberTest, TakesTheWholeTextOrNothing) {
  EXPECT_EQ(parse_number<int>("-17"), -17);
  EXPECT_EQ(parse_number<double>("2.5"), 2.5);
  for (const char* text : {"", " 1", "1 ", "1x", "0x1", "+1", "99999999999"}) {
    EXPECT_EQ(parse_number<int>(text), std::nullopt) << text;
  }
  EXPECT_EQ(parse_number<std::uint8_t>("256"), std::nullopt);
}

TEST(ParseNumberTest, TakesANumberOffTheFront) {
  std::string_view text = "12,-3x";
  EXPECT_EQ(take_number<int>(text), 12);
  EXPECT_EQ(text, ",-3x");
  EXPECT_EQ(take_number<int>(text), std::nullopt);
  EXPECT_EQ(text, ",-3x");  // Nothing was taken.
}

// These values are published for FNV-1a. Hashing in parts gives the same values.
TEST(Fnv1aTest, IsTheKnownOne) {
  EXPECT_EQ(fnv1a(""), 0xcbf29ce484222325u);
  EXPECT_EQ(fnv1a("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(fnv1a("foobar"), 0x85944171f73967e8u);
  EXPECT_EQ(fnv1a("bar", fnv1a("foo")), fnv1a("foobar"));
}

TEST(Printable, KeepsWhatATerminalShowsAndNothingElse) {
  EXPECT_EQ(printable("rank 1 (node04 pid 8812): all_reduce(sum f32 [4]) ~#!"),
            "rank 1 (node04 pid 8812): all_reduce(sum f32 [4]) ~#!");
  EXPECT_EQ(printable("\x1b]0;title\x07 \x1b[31mred\x1b[0m\x7f\x80\xff\r"),
            "?]0;title? ?[31mred?[0m????");
  EXPECT_EQ(printable("two\nlines\tand a tab"), "two lines and a tab");
  EXPECT_EQ(printable(std::string("\0x", 2)), "?x");
}

// This is the published sequence of SplitMix64. A seed in a bug report must keep its meaning.
TEST(RandomTest, GoldenValues) {
  Random random(1234567);
  EXPECT_EQ(random.next(), 6457827717110365317u);
  EXPECT_EQ(random.next(), 3203168211198807973u);
  EXPECT_EQ(random.next(), 9817491932198370423u);
  EXPECT_EQ(random.next(), 4593380528125082431u);
  EXPECT_EQ(random.next(), 16408922859458223821u);
}

TEST(RandomTest, StaysBelowItsBoundAndReachesEveryNumber) {
  Random random(1);
  unsigned seen = 0;
  for (int draw = 0; draw < 200; ++draw) {
    const std::uint64_t number = random.below(7);
    ASSERT_LT(number, 7u);
    seen |= 1u << number;
  }
  EXPECT_EQ(seen, 0x7fu);
}

TEST(RandomTest, UniformIsBetweenZeroAndOne) {
  Random random(2);
  double sum = 0;
  for (int draw = 0; draw < 10000; ++draw) {
    const double number = random.uniform();
    ASSERT_GE(number, 0.0);
    ASSERT_LT(number, 1.0);
    sum += number;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.02);
}

TEST(RingQueueTest, BehavesLikeADeque) {
  RingQueue<int> queue;
  std::deque<int> expected;
  Random random(5);
  for (int i = 0; i < 20000; ++i) {
    // The queue grows for a while, then shrinks, so that it wraps around at many sizes.
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

std::vector<std::size_t> ranks_of(const RankSet& set) {
  std::vector<std::size_t> ranks;
  set.for_each([&](std::size_t rank) { ranks.push_back(rank); });
  return ranks;
}

TEST(RankSetTest, VisitsWhatIsInIt) {
  RankSet set(129);
  EXPECT_TRUE(ranks_of(set).empty());
  for (const std::size_t rank : {128u, 64u, 0u, 63u, 64u}) set.insert(rank);
  EXPECT_EQ(ranks_of(set), (std::vector<std::size_t>{0, 63, 64, 128}));
  set.erase(64);
  set.erase(65);
  EXPECT_EQ(ranks_of(set), (std::vector<std::size_t>{0, 63, 128}));
}

TEST(RankSetTest, MayChangeWhileItIsVisited) {
  RankSet set(129);
  for (const std::size_t rank : {5u, 70u}) set.insert(rank);
  std::vector<std::size_t> visited;
  set.for_each([&](std::size_t rank) {
    visited.push_back(rank);
    set.erase(rank);
    if (rank == 70) set.insert(3);
  });
  EXPECT_EQ(visited, (std::vector<std::size_t>{5, 70}));
  EXPECT_EQ(ranks_of(set), std::vector<std::size_t>{3});
}

}  // namespace
}  // namespace stretto
