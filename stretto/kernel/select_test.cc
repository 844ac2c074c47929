// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/kernel/select.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/base/random.h"
#include "stretto/kernel/reduce.h"

namespace stretto::kernel {
namespace {

constexpr std::uint32_t kGuard = 0xABCDABCD;
constexpr std::size_t kGuards = 4;
constexpr std::size_t kFloatsOfLine = 16;

// Draws values of few magnitudes, so that many are equal, and special values.
std::vector<float> special_values(std::size_t count, std::uint64_t seed) {
  constexpr float kSpecial[] = {0.0f,
                                -0.0f,
                                1.0f,
                                -1.0f,
                                std::numeric_limits<float>::denorm_min(),
                                -std::numeric_limits<float>::max(),
                                std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::quiet_NaN()};
  Random random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    const auto drawn = random.uniform();
    value = drawn < 0.5 ? static_cast<float>(drawn) : kSpecial[static_cast<int>(drawn * 1e6) % 9];
  }
  return values;
}

// Lengths around those of vectors, and of the blocks that the loops look at together.
std::vector<std::size_t> lengths() {
  std::vector<std::size_t> all(71);
  std::iota(all.begin(), all.end(), std::size_t{0});
  for (const std::size_t whole : {128, 256, 512, 1024, 2048}) {
    for (const std::size_t length : {whole - 1, whole, whole + 1}) all.push_back(length);
  }
  return all;
}

class Select : public ::testing::Test {
 protected:
  ~Select() override { EXPECT_TRUE(use_target("").ok()); }

  template <class Body>
  void on_all_targets(const Body& body) {
    for (const std::string_view target : available_targets()) {
      SCOPED_TRACE(target);
      ASSERT_TRUE(use_target(target).ok());
      for (const std::size_t length : lengths()) {
        SCOPED_TRACE(length);
        body(special_values(length, length));
      }
    }
  }
};

// Compares as bits, because NaN equals nothing.
std::vector<std::uint32_t> bits_of(std::span<const float> values) {
  std::vector<std::uint32_t> bits(values.size());
  std::ranges::transform(values, bits.begin(), std::bit_cast<std::uint32_t, float>);
  return bits;
}

constexpr std::uint32_t kLimits[] = {0,          1,         0x3E800000, 0x3F800000, kInfinityBits,
                                     0x7FC00000, 0x80000000};

void expect_taken(const std::vector<float>& values, std::uint32_t limit, std::size_t room) {
  std::vector<std::uint32_t> wanted;
  std::vector<float> wanted_values, left = values;
  std::size_t found = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (magnitude_bits(values[i]) < limit) continue;
    if (found++ >= room) continue;
    wanted.push_back(static_cast<std::uint32_t>(i));
    wanted_values.push_back(std::exchange(left[i], 0.0f));
  }
  // Each length begins at another offset in a cache line.
  const std::size_t begin = values.size() % kFloatsOfLine;
  std::vector<float> line(begin + values.size() + kGuards, std::bit_cast<float>(kGuard));
  const std::span<float> from = std::span(line).subspan(begin, values.size());
  std::ranges::copy(values, from.begin());
  std::vector<std::uint32_t> indices(room + kGuards, kGuard);
  std::vector<float> taken(room + kGuards, std::bit_cast<float>(kGuard));
  const Found result =
      take_at_least(from, limit, std::span(indices).first(room), std::span(taken).first(room));
  EXPECT_EQ(result.count, found);
  for (std::size_t i = room; i < room + kGuards; ++i) {
    EXPECT_EQ(indices[i], kGuard);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(taken[i]), kGuard);
  }
  indices.resize(wanted.size());
  taken.resize(wanted.size());
  EXPECT_EQ(indices, wanted);
  EXPECT_EQ(bits_of(taken), bits_of(wanted_values));
  left.insert(left.begin(), begin, std::bit_cast<float>(kGuard));
  left.insert(left.end(), kGuards, std::bit_cast<float>(kGuard));
  EXPECT_EQ(bits_of(line), bits_of(left));
}

TEST_F(Select, TakesWhatReachesTheLimitInOrderAndNoMoreThanThereIsRoomFor) {
  on_all_targets([](const std::vector<float>& values) {
    for (const std::uint32_t limit : kLimits) {
      for (const std::size_t room : {values.size(), values.size() / 3, std::size_t{0}}) {
        expect_taken(values, limit, room);
      }
    }
  });
}

TEST_F(Select, OfWhatHasBeenTakenTheLesserComesBack) {
  on_all_targets([](const std::vector<float>& values) {
    for (const std::uint32_t limit : kLimits) {
      std::vector<float> sums(values.size(), -0.0f), taken(values.size());
      std::vector<std::uint32_t> indices(values.size());
      const Found all = add_and_take_at_least(sums, values, 0, indices, taken);
      ASSERT_EQ(all.count, values.size());
      const std::size_t kept = keep_at_least(indices, taken, limit, sums);
      std::vector<std::uint32_t> wanted;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const bool stays = magnitude_bits(values[i]) >= limit;
        if (stays) wanted.push_back(static_cast<std::uint32_t>(i));
        EXPECT_EQ(magnitude_bits(sums[i]), stays ? 0 : magnitude_bits(values[i]));
      }
      EXPECT_EQ(kept, wanted.size());
      indices.resize(kept);
      EXPECT_EQ(indices, wanted);
    }
  });
}

TEST_F(Select, GathersMagnitudesOfARange) {
  on_all_targets([](const std::vector<float>& values) {
    for (const std::uint32_t least : kLimits) {
      for (const std::uint32_t greatest : kLimits) {
        if (greatest < least || greatest > 0x7FFFFFFF) continue;
        std::vector<std::uint32_t> wanted;
        for (const float value : values) {
          const std::uint32_t bits = magnitude_bits(value);
          if (bits >= least && bits <= greatest) wanted.push_back(bits);
        }
        std::vector<std::uint32_t> to(wanted.size() + kSpareMagnitudes + kGuards, kGuard);
        const std::size_t count = magnitudes_between(
            values, least, greatest, std::span(to).first(wanted.size() + kSpareMagnitudes));
        for (std::size_t i = to.size() - kGuards; i < to.size(); ++i) EXPECT_EQ(to[i], kGuard);
        to.resize(count);
        EXPECT_EQ(to, wanted);
      }
    }
  });
}

}  // namespace
}  // namespace stretto::kernel
