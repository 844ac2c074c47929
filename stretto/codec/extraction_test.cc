// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Messages that are made from an Extraction, which is done here element by element, must equal the
// codec's messages of the vector itself.

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
#include "tests/support/one_bit_numbers.h"

namespace stretto {
namespace {

using Floats = std::vector<float>;

constexpr codec::Position kExtracted{.step = 3, .own_key = 7, .context_hash = 5};

struct Extracted {
  std::vector<std::uint32_t> indices;
  std::vector<std::byte> numbers;
};

template <class Number>
void round_all(float limit, Floats& values, std::vector<std::byte>& numbers) {
  for (float& value : values) {
    const Number said(std::isfinite(value) ? std::clamp(value, -limit, limit) : value);
    const auto* const bytes = reinterpret_cast<const std::byte*>(&said);
    numbers.insert(numbers.end(), bytes, bytes + sizeof(said));
    value = std::isfinite(value) ? value - static_cast<float>(said) : 0.0f;
  }
}

// Rounds `values` as `how` says: returns the numbers of the message, and leaves the rest in
// `values`.
std::vector<std::byte> round(const codec::Extraction& how, Floats& values) {
  std::vector<std::byte> numbers;
  if (how.rounded == DType::f16) round_all<Half>(how.limit, values, numbers);
  if (how.rounded == DType::bf16) round_all<BFloat16>(how.limit, values, numbers);
  if (how.rounded == DType::boolean) return testing::one_bit_numbers(values, how.section);
  if (how.rounded == DType::i8) {
    numbers.resize(values.size() + kernel::int8_blocks(values.size()));
    const std::span bytes(reinterpret_cast<std::uint8_t*>(numbers.data()), numbers.size());
    const std::span codes(reinterpret_cast<std::int8_t*>(bytes.data()), values.size());
    kernel::quantize_int8(values, {how.key.has_value(), how.key.value_or(0)}, codes,
                          bytes.subspan(values.size()));
  }
  if (!how.rounded) {
    const auto bytes = std::as_bytes(std::span(values));
    numbers.assign(bytes.begin(), bytes.end());
    std::ranges::fill(values, 0.0f);
  }
  return numbers;
}

// Follows the definition of codec::Extraction literally.
Extracted extract(const codec::Extraction& how, Floats& carry, const Floats& gradient) {
  Extracted result;
  for (std::size_t i = 0; i < carry.size(); ++i) carry[i] += gradient[i];
  const auto magnitude = [&](std::uint32_t i) { return kernel::magnitude_bits(carry[i]); };
  if (how.takes_all()) {
    result.numbers = round(how, carry);
  } else {
    result.indices.resize(carry.size());
    std::iota(result.indices.begin(), result.indices.end(), 0u);
    if (how.least) {
      const std::uint32_t least = kernel::magnitude_bits(*how.least);
      std::erase_if(result.indices, [&](std::uint32_t i) { return magnitude(i) < least; });
      if (result.indices.size() > how.most) return {{}, round({}, carry)};
    } else {
      std::ranges::stable_sort(result.indices, std::ranges::greater(), magnitude);
      result.indices.resize(how.greatest);
      std::ranges::sort(result.indices);
    }
    Floats values;
    for (const std::uint32_t i : result.indices) values.push_back(carry[i]);
    result.numbers = round(how, values);
    for (std::size_t j = 0; j < values.size(); ++j) carry[result.indices[j]] = values[j];
  }
  for (float& value : carry) value = std::isfinite(value) ? value : 0.0f;
  return result;
}

// Draws values of which some are equal, and a few infinity or NaN if not `are_finite`. Some are
// zero, of long vectors more.
Floats values_of(std::size_t count, bool are_finite, Random& random) {
  Floats values(count);
  for (float& value : values) {
    if (count > 2000 && random.below(20) == 0) continue;
    value = static_cast<float>(random.below(64)) - 32;
    if (random.below(2) == 0) value *= std::ldexp(1.0f, static_cast<int>(random.below(200)) - 100);
    if (are_finite || random.below(50) != 0) continue;
    value = random.below(2) == 0 ? std::numeric_limits<float>::quiet_NaN()
                                 : -std::numeric_limits<float>::infinity();
  }
  return values;
}

// Decodes the rounded numbers of an Extraction.
Floats values_of(const codec::Extraction& how, std::span<const std::byte> numbers,
                 std::size_t count) {
  Floats values(count);
  if (how.rounded == DType::boolean) {
    testing::add_one_bit_numbers(numbers, how.section, values);
    return values;
  }
  if (how.rounded == DType::i8) {
    const auto* const codes = reinterpret_cast<const std::int8_t*>(numbers.data());
    const auto* const scales = reinterpret_cast<const std::uint8_t*>(codes + values.size());
    kernel::add_int8({codes, values.size()}, {scales, kernel::int8_blocks(values.size())}, values);
    return values;
  }
  if (!how.rounded) {
    if (!numbers.empty()) std::memcpy(values.data(), numbers.data(), numbers.size());
    return values;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, numbers.data() + 2 * i, sizeof(bits));
    values[i] = how.rounded == DType::f16 ? static_cast<float>(Half::from_bits(bits))
                                          : static_cast<float>(BFloat16::from_bits(bits));
  }
  return values;
}

class Extractions : public ::testing::TestWithParam<std::shared_ptr<const Codec>> {};
INSTANTIATE_TEST_SUITE_P(Of, Extractions,
                         ::testing::Values(int8(), f16(), f16({.clip = 1.5f}), bf16(),
                                           bf16({.clip = 1.5f}), top_k(),
                                           top_k({.density = 0.3, .values = ValueFormat::bf16}),
                                           top_k({.density = 0.1, .values = ValueFormat::int8}),
                                           top_k({.density = 0.05, .warm_up_steps = 14}),
                                           threshold({.limit = 20}), threshold({.limit = 0}),
                                           threshold({.limit = 1e9f, .values = ValueFormat::bf16}),
                                           threshold({.limit = 5, .values = ValueFormat::int8}),
                                           one_bit(), int8({.stochastic = true}), nonzeros()));

TEST_P(Extractions, MakeTheMessageAndTheResidualOfTheVectorItself) {
  const Codec& codec = *GetParam();
  Random random(18);
  for (const std::size_t count : {0, 1, 63, 64, 1000, 4097, 70'000}) {
    for (const bool are_finite : {true, false}) {
      Floats expected_carry = values_of(count, true, random);
      Floats carry = expected_carry;
      const Floats gradient = values_of(count, are_finite, random);
      codec::Scratch scratch;
      std::vector<std::byte> expected;
      codec.encode({.carry = expected_carry, .gradient = gradient, .position = kExtracted}, scratch,
                   expected);
      const auto how = codec.extraction(count, kExtracted);
      ASSERT_TRUE(how.has_value());
      Extracted extracted = extract(*how, carry, gradient);
      const codec::Extract said{extracted.indices, extracted.numbers};
      const std::size_t elements = said.has_all() ? count : said.indices.size();
      EXPECT_EQ(extracted.numbers.size(), how->number_bytes(elements));
      // The buffer still has the bytes of another message.
      std::vector<std::byte> message(codec.extract_bytes(count, elements), std::byte{0xFF});
      codec.encode_extract(said, count, kExtracted, message);
      EXPECT_EQ(message, expected) << codec.name() << " of " << count;
      EXPECT_EQ(carry, expected_carry) << codec.name() << " of " << count;
    }
  }
}

TEST_P(Extractions, OfAMessageAreWhatItSays) {
  const Codec& codec = *GetParam();
  Random random(19);
  for (const std::size_t count : {0, 1, 64, 4097, 70'000}) {
    Floats carry(count);
    const Floats gradient = values_of(count, true, random);
    codec::Scratch scratch;
    std::vector<std::byte> message;
    codec.encode({.carry = carry, .gradient = gradient, .position = kExtracted}, scratch, message);
    Floats expected(count), sums(count);
    ASSERT_TRUE(codec.decode_add(message, kExtracted, scratch, expected).ok());
    const auto extract = codec.decode_extract(message, kExtracted, scratch, count);
    ASSERT_TRUE(extract.ok()) << extract.status().message();
    const codec::Extraction how = *codec.extraction(count, kExtracted);
    const auto& indices = extract.value().indices;
    const bool has_all = extract.value().has_all();
    const std::size_t elements = has_all ? count : indices.size();
    const Floats values = values_of(how, extract.value().numbers, elements);
    for (std::size_t j = 0; j < values.size(); ++j) {
      sums[has_all ? j : indices[j]] += values[j];
    }
    EXPECT_EQ(sums, expected) << codec.name() << " of " << count;
    if (count == 0) continue;
    message.back() ^= std::byte{1};
    EXPECT_EQ(codec.decode_extract(message, kExtracted, scratch, count).status().code(),
              StatusCode::protocol);
  }
}

// The other codecs take everything from the host.
TEST(Extraction, IsNotOfCodecsThatTakeAllFromTheHost) {
  for (const auto& codec : {dense(), top_k({.exact = false}), one_bit({.stochastic = true})}) {
    EXPECT_FALSE(codec->extraction(1000, {}).has_value()) << codec->name();
  }
}

}  // namespace
}  // namespace stretto
