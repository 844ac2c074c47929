// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Which elements sparse codecs choose, compared with naive references, and how indices are packed
// into bits.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/base/error.h"
#include "stretto/base/random.h"
#include "stretto/codec/codec.h"
#include "stretto/codec/index_set.h"
#include "stretto/kernel/reduce.h"
#include "stretto/kernel/select.h"

namespace stretto {
namespace {

using Floats = std::vector<float>;

// Draws values that are distributed about like the gradient of a layer.
Floats normal(std::size_t count, double sigma, Random& random) {
  Floats values(count);
  for (float& value : values) {
    double sum = 0;
    for (int i = 0; i < 12; ++i) sum += random.uniform();
    value = static_cast<float>((sum - 6) * sigma);
  }
  return values;
}

// Encodes `gradient` and returns the decoded message, with zeros for elements that are not sent.
Floats sent(const Codec& codec, const Floats& gradient, std::uint32_t* hint = nullptr,
            const codec::Position& position = {}) {
  codec::Scratch scratch;
  std::vector<std::byte> message;
  Floats carry(gradient.size()), values(gradient.size());
  codec.encode({.carry = carry, .gradient = gradient, .position = position, .hint = hint}, scratch,
               message);
  EXPECT_TRUE(codec.decode_add(message, position, scratch, values).ok());
  return values;
}

Floats naive_top_k(const Floats& gradient, std::size_t k) {
  std::vector<std::size_t> order(gradient.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](std::size_t i) { return kernel::magnitude_bits(gradient[i]); });
  Floats values(gradient.size());
  for (std::size_t j = 0; j < k; ++j) values[order[j]] = gradient[order[j]];
  return values;
}

Floats naive_threshold(const Floats& gradient, float limit) {
  Floats values(gradient);
  for (float& value : values) {
    if (!(std::abs(value) >= limit)) value = 0;
  }
  return values;
}

// If values were truncated to integers for the comparison, those below 1 would all count as equal,
// and the first ones would be chosen.
TEST(TopK, SmallGradientsAreComparedAsTheyAre) {
  Random random(1);
  for (const double sigma : {0.01, 0.3, 1.0, 1e-30}) {
    const Floats gradient = normal(1 << 14, sigma, random);
    EXPECT_EQ(sent(*top_k({.density = 0.05}), gradient), naive_top_k(gradient, 820));
  }
}

TEST(TopK, IsThatOfTheReferenceForEveryNumberAndTies) {
  Random random(2);
  for (int attempt = 0; attempt < 60; ++attempt) {
    const std::size_t count = 1 + random.below(3000);
    Floats gradient(count);
    const auto distinct = 1 + random.below(40);
    for (float& value : gradient) {
      value = (static_cast<float>(random.below(distinct)) - 3) * 0.01f;
    }
    const std::size_t k = 1 + random.below(count);
    const double density = (static_cast<double>(k) - 0.5) / static_cast<double>(count);
    std::uint32_t hint = static_cast<std::uint32_t>(random.below(0x40000000));
    ASSERT_EQ(sent(*top_k({.density = density}), gradient, &hint), naive_top_k(gradient, k));
    // The hint that the first call has left serves a similar vector.
    gradient[random.below(count)] = 1;
    ASSERT_EQ(sent(*top_k({.density = density}), gradient, &hint), naive_top_k(gradient, k));
  }
}

// SINGA's own tests also look at constant vectors, of which everything is sent.
TEST(TopK, AllOfAConstantVectorIsSentOnce) {
  for (const std::size_t count : {1u, 10u, 4096u, 5000u}) {
    const Floats ones(count, 1.0f);
    EXPECT_EQ(sent(*top_k({.density = 1}), ones), ones);
    EXPECT_EQ(sent(*threshold({.limit = 0.05f}), ones), ones);
    EXPECT_EQ(sent(*threshold({.limit = 1.5f}), ones), Floats(count));
  }
}

// More elements have one magnitude than there is room for candidates.
TEST(TopK, ManyEqualOnesAreTakenFromTheFrontOn) {
  Floats gradient(100000, 0.5f);
  gradient[77777] = 0.50001f;
  EXPECT_EQ(sent(*top_k({.density = 0.001}), gradient), naive_top_k(gradient, 100));
  std::fill(gradient.begin(), gradient.end(), 0.0f);
  gradient[5] = -1;
  EXPECT_EQ(sent(*top_k({.density = 0.001}), gradient), naive_top_k(gradient, 100));
}

TEST(TopK, InfinityComesFirstAndNaNBeforeIt) {
  Floats gradient(1000, 1.0f);
  gradient[900] = -std::numeric_limits<float>::infinity();
  gradient[901] = std::numeric_limits<float>::quiet_NaN();
  const Floats values = sent(*top_k({.density = 0.002}), gradient);
  EXPECT_EQ(values[900], gradient[900]);
  EXPECT_TRUE(std::isnan(values[901]));
  EXPECT_EQ(values[0], 0);
}

TEST(TopK, WarmsUpFromAllToFew) {
  const auto codec = top_k({.density = 0.01, .warm_up_steps = 4});
  EXPECT_EQ(codec->name(), "top_k(0.01 after 4 steps)");
  std::size_t last = std::numeric_limits<std::size_t>::max();
  for (std::uint64_t step = 0; step <= 4; ++step) {
    const auto bytes = codec->message_bytes(10000, step).value();
    EXPECT_LT(bytes, last);
    last = bytes;
  }
  EXPECT_EQ(codec->message_bytes(10000, 9), top_k({.density = 0.01})->message_bytes(10000, 0));
}

// The limit of the last step may find too few or too many elements, by a little or by far.
TEST(TopK, GradientsMayGrowAndShrinkFromStepToStep) {
  Random random(14);
  std::uint32_t hint = 0;
  double sigma = 1;
  for (const double factor :
       {1.0, 1.0, 0.95, 0.95, 0.9, 0.8, 0.5, 1.0, 1.1, 2.0, 0.93, 0.01, 0.9}) {
    sigma *= factor;
    const Floats gradient = normal(20000, sigma, random);
    EXPECT_EQ(sent(*top_k({.density = 0.05}), gradient, &hint), naive_top_k(gradient, 1000))
        << "after a factor of " << factor;
  }
}

// The first step of a warm-up has a density of 1.
TEST(TopK, LooksAtNoMoreElementsThanThereAre) {
  Random random(13);
  const Floats gradient = normal(5000, 1, random);
  for (const bool exact : {true, false}) {
    const auto codec = top_k({.density = 1, .exact = exact});
    codec::Scratch scratch;
    std::vector<std::byte> message;
    Floats carry(gradient.size());
    std::uint32_t hint = 0;
    for (std::uint64_t step = 0; step < 3; ++step) {
      codec->encode(
          {.carry = carry, .gradient = gradient, .position = {.step = step}, .hint = &hint},
          scratch, message);
    }
    EXPECT_LE(scratch.indices.capacity(), 5000u);
    EXPECT_LE(scratch.values.capacity(), 5000u);
    EXPECT_LE(scratch.magnitudes.capacity(), 5000u + kernel::kSpareMagnitudes);
  }
}

// The limit of the previous step finds about as many elements. It drifts with the gradients, and is
// computed anew if it does not fit.
TEST(TopK, AReusedLimitFindsAboutAsMany) {
  const auto codec = top_k({.density = 0.02, .exact = false});
  EXPECT_EQ(codec->name(), "top_k(0.02, reused limit)");
  EXPECT_EQ(codec->message_bytes(6000, 1), std::nullopt);
  Random random(7);
  std::uint32_t hint = 0;
  std::size_t exact = 0;
  for (std::uint64_t step = 0; step < 100; ++step) {
    // Gradients shrink from step to step, and grow tenfold once.
    const double sigma = std::pow(0.98, static_cast<double>(step)) * (step < 30 ? 1 : 10);
    const Floats gradient = normal(6000, sigma, random);
    const float limit = hint > 0 ? std::bit_cast<float>(hint) : 0;
    Floats carry(gradient.size()), values(gradient.size());
    codec::Scratch scratch;
    std::vector<std::byte> message;
    const codec::Position position{.step = step};
    const std::size_t found =
        codec->encode({.carry = carry, .gradient = gradient, .position = position, .hint = &hint},
                      scratch, message);
    ASSERT_TRUE(codec->decode_add(message, position, scratch, values).ok());
    const bool is_exact = values == naive_top_k(gradient, 120);
    exact += is_exact ? 1 : 0;
    EXPECT_TRUE(is_exact || values == naive_threshold(gradient, limit)) << step;
    EXPECT_TRUE(is_exact || (step != 0 && step != 30 && step != 64)) << step;
    EXPECT_TRUE(found >= 60 && found <= 240) << found << " in step " << step;
  }
  EXPECT_LT(exact, 20u);
}

// Zeros lie between the values that are sent. No element is sent twice, and no zero.
TEST(Threshold, IsThatOfTheReferenceWithZerosInBetween) {
  Random random(3);
  for (const double density : {0.0, 0.01, 0.05, 0.3, 1.0}) {
    Floats gradient = normal(5000, 1, random);
    for (float& value : gradient) {
      if (random.uniform() >= density) value = 0;
    }
    for (const float limit : {0.0f, 0.5f, 3.0f}) {
      EXPECT_EQ(sent(*threshold({.limit = limit}), gradient), naive_threshold(gradient, limit));
    }
  }
}

TEST(Threshold, GrowsBeyondTheRoomOfTheLastStep) {
  std::uint32_t hint = 0;
  const auto codec = threshold({.limit = 0.5f});
  for (const std::size_t above : {0u, 3000u, 20000u, 10u}) {
    Floats gradient(20000, 0.1f);
    std::fill_n(gradient.begin(), above, 0.7f);
    EXPECT_EQ(sent(*codec, gradient, &hint), naive_threshold(gradient, 0.5f));
  }
}

// If sums are too large for the cache, decode_add() adds elements while it reads later indices.
TEST(TopK, SumsInMemoryAreThoseInACache) {
  constexpr std::size_t kCount = (std::size_t{8} << 20) / sizeof(float) + 12345;
  for (const auto& codec :
       {top_k({.density = 0.01}), top_k({.density = 0.3}), top_k({.density = 0.001}),
        top_k({.density = 0.01, .values = ValueFormat::int8}),
        top_k({.density = 0.05, .values = ValueFormat::bf16})}) {
    Random random(3);
    Floats gradient(kCount), carry(kCount), sums(kCount, 1.0f);
    for (float& value : gradient) value = static_cast<float>(random.uniform()) - 0.5f;
    codec::Scratch scratch;
    std::vector<std::byte> message;
    codec->encode({carry, gradient, {}}, scratch, message);
    ASSERT_TRUE(codec->decode_add(message, {}, scratch, sums).ok());
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(sums[i], 1.0f + (gradient[i] - carry[i])) << codec->name() << ", " << i;
    }
  }
}

TEST(Int8, StochasticRoundingIsRightOnAverage) {
  const auto codec = int8({.stochastic = true});
  Floats gradient(512, 0.3f);
  gradient[0] = 64;         // This makes the scale 1.
  gradient[256] = 127.75f;  // No code stands for more than 127.
  double sum = 0, sum_of_greatest = 0;
  for (std::uint64_t step = 0; step < 200; ++step) {
    const Floats values = sent(*codec, gradient, nullptr, {.step = step, .own_key = 5});
    for (std::size_t i = 1; i < 256; ++i) sum += values[i];
    sum_of_greatest += values[256];
  }
  EXPECT_NEAR(sum / (200 * 255), 0.3, 0.01);
  EXPECT_NEAR(sum_of_greatest / 200, 127.75, 0.3);
}

TEST(Codec, SettingsWithoutMeaningAreRefused) {
  EXPECT_THROW((void)top_k({.density = 0}), InvalidArgument);
  EXPECT_THROW((void)top_k({.density = 1.5}), InvalidArgument);
  EXPECT_THROW((void)threshold({.limit = std::nanf("")}), InvalidArgument);
}

TEST(IndexSet, EverySetComesBack) {
  Random random(6);
  for (int attempt = 0; attempt < 200; ++attempt) {
    const std::size_t universe = 1 + random.below(20000);
    const std::uint64_t density = 1 + random.below(200);
    std::vector<std::uint32_t> indices;
    for (std::uint32_t i = 0; i < universe; ++i) {
      if (random.below(density) == 0) indices.push_back(i);
    }
    const std::size_t bytes = codec::index_set_bytes(universe, indices.size());
    const double count = static_cast<double>(indices.size());
    const double bits = count * (2 + std::log2(static_cast<double>(universe) / (count + 1e-9)));
    EXPECT_LE(static_cast<double>(bytes), bits / 8 + 24);
    EXPECT_LE(bytes, (universe + 63) / 64 * 8);
    std::vector<std::byte> room(bytes);
    codec::write_index_set(indices, universe, room);
    std::vector<std::uint32_t> read(indices.size());
    for (const std::string_view target : kernel::available_targets()) {
      ASSERT_TRUE(kernel::use_target(target).ok());
      std::ranges::fill(read, 0u);
      ASSERT_TRUE(codec::read_index_set(room, universe, read)) << target;
      ASSERT_EQ(read, indices) << target;
    }
    ASSERT_TRUE(kernel::use_target("").ok());
  }
}

// A set in which one bit was changed is refused, or is exactly what would be written for another
// set.
TEST(IndexSet, BytesThatNobodyWritesAreRefused) {
  Random random(9);
  std::size_t refused = 0;
  for (int attempt = 0; attempt < 3000; ++attempt) {
    const std::size_t universe = random.below(2) == 0
                                     ? 1 + random.below(4000)
                                     : (std::size_t{1} << 32) - 1 - random.below(9);
    std::vector<std::uint32_t> indices;
    for (std::uint64_t i = random.below(9); i < universe;
         i += 1 + random.below(universe / 20 + 1)) {
      indices.push_back(static_cast<std::uint32_t>(i));
    }
    if (indices.empty()) continue;
    std::vector<std::byte> bytes(codec::index_set_bytes(universe, indices.size()));
    codec::write_index_set(indices, universe, bytes);
    bytes[random.below(bytes.size())] ^= std::byte{1} << random.below(8);
    if (!codec::read_index_set(bytes, universe, indices)) {
      ++refused;
      continue;
    }
    ASSERT_LT(indices.back(), universe);
    std::vector<std::byte> again(bytes.size());
    codec::write_index_set(indices, universe, again);
    ASSERT_EQ(again, bytes);
  }
  EXPECT_GT(refused, 100u);
}

TEST(IndexSet, TheLastIndicesOfTheGreatestUniverseComeBack) {
  const std::size_t universe = (std::size_t{1} << 32) - 1;
  const std::vector<std::uint32_t> indices = {0, 1, 0xFFFFFFFD, 0xFFFFFFFE};
  std::vector<std::byte> room(codec::index_set_bytes(universe, indices.size()));
  codec::write_index_set(indices, universe, room);
  std::vector<std::uint32_t> read(indices.size());
  ASSERT_TRUE(codec::read_index_set(room, universe, read));
  EXPECT_EQ(read, indices);
}

}  // namespace
}  // namespace stretto
