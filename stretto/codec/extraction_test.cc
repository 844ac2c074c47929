// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Messages that are made of what was done with a vector elsewhere, here element by element, against
// those of the vector itself.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/base/half.h"
#include "stretto/base/random.h"
#include "stretto/codec/codec.h"
#include "stretto/kernel/quantize.h"
#include "stretto/kernel/select.h"

namespace stretto {
namespace {

using Floats = std::vector<float>;

constexpr codec::Position kExtracted{.step = 3, .context_hash = 5};

struct Extracted {
  std::vector<std::uint32_t> indices;
  Floats values;
  std::vector<std::byte> numbers;
};

template <class Number>
void round_all(float limit, Floats& carry, std::vector<std::byte>& numbers) {
  for (float& value : carry) {
    const Number said(std::isfinite(value) ? std::clamp(value, -limit, limit) : value);
    const auto* const bytes = reinterpret_cast<const std::byte*>(&said);
    numbers.insert(numbers.end(), bytes, bytes + sizeof(said));
    value = std::isfinite(value) ? value - static_cast<float>(said) : 0.0f;
  }
}

// By the words of codec::Extraction.
Extracted extract(const codec::Extraction& how, Floats& carry, const Floats& gradient) {
  Extracted result;
  for (std::size_t i = 0; i < carry.size(); ++i) carry[i] += gradient[i];
  if (how.rounded == DType::f16) round_all<Half>(how.limit, carry, result.numbers);
  if (how.rounded == DType::bf16) round_all<BFloat16>(how.limit, carry, result.numbers);
  if (how.rounded == DType::i8) {
    result.numbers.resize(carry.size() + kernel::int8_blocks(carry.size()));
    const std::span bytes(reinterpret_cast<std::uint8_t*>(result.numbers.data()),
                          result.numbers.size());
    const std::span codes(reinterpret_cast<std::int8_t*>(bytes.data()), carry.size());
    kernel::quantize_int8(carry, {}, codes, bytes.subspan(carry.size()));
  }
  result.indices.resize(carry.size());
  std::iota(result.indices.begin(), result.indices.end(), 0u);
  std::ranges::stable_sort(result.indices, std::ranges::greater(),
                           [&](std::uint32_t i) { return kernel::magnitude_bits(carry[i]); });
  result.indices.resize(how.greatest);
  std::ranges::sort(result.indices);
  for (const std::uint32_t i : result.indices) {
    result.values.push_back(std::exchange(carry[i], 0.0f));
  }
  for (float& value : carry) value = std::isfinite(value) ? value : 0.0f;
  return result;
}

// Some equal, some zero, and here and there infinity or NaN.
Floats values_of(std::size_t count, bool are_finite, Random& random) {
  Floats values(count);
  for (float& value : values) {
    value = static_cast<float>(random.below(64)) - 32;
    if (random.below(2) == 0) value *= std::ldexp(1.0f, static_cast<int>(random.below(200)) - 100);
    if (are_finite || random.below(50) != 0) continue;
    value = random.below(2) == 0 ? std::numeric_limits<float>::quiet_NaN()
                                 : -std::numeric_limits<float>::infinity();
  }
  return values;
}

class Extractions : public ::testing::TestWithParam<std::shared_ptr<const Codec>> {};
INSTANTIATE_TEST_SUITE_P(Of, Extractions,
                         ::testing::Values(int8(), f16(), f16({.clip = 1.5f}), bf16(),
                                           bf16({.clip = 1.5f}), top_k(),
                                           top_k({.density = 0.3, .values = ValueFormat::bf16}),
                                           top_k({.density = 0.1, .values = ValueFormat::int8}),
                                           top_k({.density = 0.05, .warm_up_steps = 14})));

TEST_P(Extractions, MakeTheMessageAndTheResidualOfTheVectorItself) {
  const Codec& codec = *GetParam();
  Random random(18);
  for (const std::size_t count : {0, 1, 63, 64, 1000, 4097}) {
    for (const bool are_finite : {true, false}) {
      Floats expected_carry = values_of(count, true, random);
      Floats carry = expected_carry;
      const Floats gradient = values_of(count, are_finite, random);
      codec::Scratch scratch;
      std::vector<std::byte> expected;
      codec.encode({.carry = expected_carry, .gradient = gradient, .position = kExtracted}, scratch,
                   expected);
      const auto how = codec.extraction(count, kExtracted.step);
      ASSERT_TRUE(how.has_value());
      Extracted extracted = extract(*how, carry, gradient);
      // Where another message was.
      std::vector<std::byte> message(*codec.message_bytes(count, kExtracted.step), std::byte{0xFF});
      codec.encode_extract({extracted.indices, extracted.values, extracted.numbers}, count,
                           kExtracted, message);
      for (std::size_t j = 0; j < extracted.indices.size(); ++j) {
        const float rest = extracted.values[j];
        carry[extracted.indices[j]] = std::isfinite(rest) ? rest : 0.0f;
      }
      EXPECT_EQ(message, expected) << codec.name() << " of " << count;
      EXPECT_EQ(carry, expected_carry) << codec.name() << " of " << count;
    }
  }
}

TEST_P(Extractions, OfAMessageAreWhatItSays) {
  const Codec& codec = *GetParam();
  Random random(19);
  for (const std::size_t count : {0, 1, 64, 4097}) {
    Floats carry(count);
    const Floats gradient = values_of(count, true, random);
    codec::Scratch scratch;
    std::vector<std::byte> message;
    codec.encode({.carry = carry, .gradient = gradient, .position = kExtracted}, scratch, message);
    Floats expected(count), sums(count);
    ASSERT_TRUE(codec.decode_add(message, kExtracted, scratch, expected).ok());
    const auto extract = codec.decode_extract(message, kExtracted, scratch, count);
    ASSERT_TRUE(extract.ok()) << extract.status().message();
    for (std::size_t j = 0; j < extract.value().indices.size(); ++j) {
      sums[extract.value().indices[j]] += extract.value().values[j];
    }
    const DType rounded = codec.extraction(count, 0)->rounded.value_or(DType::f32);
    if (rounded == DType::i8) {
      const auto* const codes =
          reinterpret_cast<const std::int8_t*>(extract.value().numbers.data());
      const auto* const scales = reinterpret_cast<const std::uint8_t*>(codes + count);
      kernel::add_int8({codes, count}, {scales, kernel::int8_blocks(count)}, sums);
    }
    const bool are_halves = rounded == DType::f16 || rounded == DType::bf16;
    for (std::size_t i = 0; are_halves && i < count; ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, extract.value().numbers.data() + 2 * i, sizeof(bits));
      sums[i] += rounded == DType::f16 ? static_cast<float>(Half::from_bits(bits))
                                       : static_cast<float>(BFloat16::from_bits(bits));
    }
    EXPECT_EQ(sums, expected) << codec.name() << " of " << count;
    if (count == 0) continue;
    message.back() ^= std::byte{1};
    EXPECT_EQ(codec.decode_extract(message, kExtracted, scratch, count).status().code(),
              StatusCode::protocol);
  }
}

// Those that are not listed above.
TEST(Extraction, IsNotOfCodecsThatTakeAllFromTheHost) {
  for (const auto& codec :
       {dense(), nonzeros(), top_k({.exact = false}), top_blocks(), threshold({.limit = 1}),
        random_k(), int8({.stochastic = true}), one_bit()}) {
    EXPECT_FALSE(codec->extraction(1000, 0).has_value()) << codec->name();
  }
}

}  // namespace
}  // namespace stretto
