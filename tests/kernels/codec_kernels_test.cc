// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The kernels of codecs for GPUs, run by threads of the host (simulated/cuda_runtime.h), against
// the kernels for the host. That a GPU computes the same is shown by device_extraction_test.cc,
// where there is one.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "stretto/base/random.h"
#include "stretto/cuda/runtime/rounding.cu"
#include "stretto/cuda/runtime/selection.cu"
#include "stretto/kernel/quantize.h"
#include "stretto/kernel/select.h"
#include "tests/support/seed.h"

namespace stretto::cuda {
namespace {

static_assert(kThreads == simulated_cuda::kThreads && kWarp == simulated_cuda::kWarp);

using Bytes = std::vector<std::uint8_t>;

enum class Kind {
  common,     // Their sums depend on the order.
  alike,      // Few integers.
  spread,     // Of all magnitudes.
  equal,      // The mean of so many is rounded up.
  great,      // Their sum is infinite.
  no_number,  // Some are infinite or NaN.
};
constexpr Kind kKinds[] = {Kind::common, Kind::alike, Kind::spread,
                           Kind::equal,  Kind::great, Kind::no_number};

std::vector<float> values_of(std::size_t count, Kind kind, Random& random) {
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(random.uniform()) - 0.5f;
    if (kind == Kind::alike) value = static_cast<float>(random.below(64)) - 32;
    if (kind == Kind::spread) value = std::ldexp(value, static_cast<int>(random.below(240)) - 140);
    if (kind == Kind::equal) value = std::copysign(0.1f, value);
    if (kind == Kind::great) value = std::copysign(std::ldexp(1.5f, 127), value);
    if (kind != Kind::no_number || random.below(700) != 0) continue;
    value = random.below(2) == 0 ? std::numeric_limits<float>::quiet_NaN()
                                 : -std::numeric_limits<float>::infinity();
  }
  return values;
}

void append(const void* from, std::size_t bytes, Bytes& to) {
  const auto* const first = static_cast<const std::uint8_t*>(from);
  to.insert(to.end(), first, first + bytes);
}

// By the kernels for the host: numbers, and what they leave of the values.
Bytes round_on_host(DType dtype, float limit, std::vector<float>& values) {
  Bytes numbers;
  if (dtype == DType::i8) {
    std::vector<std::int8_t> codes(values.size());
    Bytes scales(kernel::int8_blocks(values.size()));
    kernel::quantize_int8(values, {}, codes, scales);
    append(codes.data(), codes.size(), numbers);
    append(scales.data(), scales.size(), numbers);
    return numbers;
  }
  if (dtype != DType::boolean) {
    std::vector<std::uint16_t> codes(values.size());
    kernel::quantize_half(dtype, values, limit, codes);
    append(codes.data(), 2 * codes.size(), numbers);
    for (float& value : values) value = std::isfinite(value) ? value : 0;
    return numbers;
  }
  for (std::size_t first = 0; first < values.size(); first += kSignSection) {
    const std::size_t count = std::min(kSignSection, values.size() - first);
    std::vector<std::uint64_t> signs(kernel::one_bit_words(count));
    std::vector<float> scales(kernel::one_bit_blocks(count));
    kernel::quantize_one_bit(std::span(values).subspan(first, count), {}, signs, scales);
    append(signs.data(), 8 * signs.size(), numbers);
    append(scales.data(), sizeof(float) * scales.size(), numbers);
  }
  return numbers;
}

void add_on_host(DType dtype, const Bytes& numbers, std::span<float> sums) {
  if (dtype == DType::i8) {
    const auto* const codes = reinterpret_cast<const std::int8_t*>(numbers.data());
    kernel::add_int8({codes, sums.size()}, std::span(numbers).subspan(sums.size()), sums);
    return;
  }
  if (dtype != DType::boolean) {
    std::vector<std::uint16_t> codes(sums.size());
    std::memcpy(codes.data(), numbers.data(), numbers.size());
    kernel::add_half(dtype, codes, sums);
    return;
  }
  const std::uint8_t* from = numbers.data();
  for (std::size_t first = 0; first < sums.size(); first += kSignSection) {
    const std::span part = sums.subspan(first, std::min(kSignSection, sums.size() - first));
    std::vector<std::uint64_t> signs(kernel::one_bit_words(part.size()));
    std::vector<float> scales(kernel::one_bit_blocks(part.size()));
    std::memcpy(signs.data(), from, 8 * signs.size());
    std::memcpy(scales.data(), from + 8 * signs.size(), sizeof(float) * scales.size());
    from += 8 * signs.size() + sizeof(float) * scales.size();
    kernel::add_one_bit(signs, scales, part);
  }
}

// NaN is what it is, whichever of all NaN.
void expect_equal(std::span<const float> found, std::span<const float> expected,
                  const std::string& what) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(found[i])) continue;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(found[i]), std::bit_cast<std::uint32_t>(expected[i]))
        << what << ", element " << i;
  }
}

class CodecKernels : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(, CodecKernels,
                         ::testing::Values(DType::f16, DType::bf16, DType::i8, DType::boolean),
                         [](const auto& dtype) { return std::string(name(dtype.param)); });

// Vectors that begin where four values are one access to memory, and elsewhere.
TEST_P(CodecKernels, RoundAndAddAsThoseOfTheHost) {
  const DType dtype = GetParam();
  const bool has_many_nan = dtype == DType::f16 || dtype == DType::bf16;
  constexpr float kLimit = 30.5f;
  Random random(testing::draw_seed());
  for (const std::size_t count : {1, 65, 513, 4099, 70'001}) {
    for (const Kind kind : kKinds) {
      if (count > kSignSection && kind != Kind::common) continue;
      const std::size_t offset = random.below(2);
      std::vector<float> expected = values_of(count, kind, random);
      std::vector<float> found(offset + count);
      std::ranges::copy(expected, found.begin() + static_cast<std::ptrdiff_t>(offset));
      const Bytes numbers = round_on_host(dtype, kLimit, expected);
      const std::string what = fmt::format("{} of {} from {} on, kind {}", name(dtype), count,
                                           offset, static_cast<int>(kind));
      // Whole words, and one behind them that nothing is written to.
      std::vector<std::uint64_t> room(numbers.size() / 8 + 2, 0xEEEEEEEEEEEEEEEE);
      auto* const bytes = reinterpret_cast<std::uint8_t*>(room.data());
      const Rounding rounding{found.data() + offset, count, dtype, kLimit, bytes, bytes + count};
      ASSERT_EQ(STRETTO_CUDA_ROUND(&rounding, nullptr), 0);
      expect_equal(std::span(found).subspan(offset), expected, what + ", what is left");
      EXPECT_EQ(bytes[numbers.size()], 0xEE) << what;
      const bool is_any_nan = has_many_nan && kind == Kind::no_number;
      EXPECT_TRUE(is_any_nan || Bytes(bytes, bytes + numbers.size()) == numbers) << what;
      std::memcpy(bytes, numbers.data(), numbers.size());
      std::ranges::fill(expected, 0.5f);
      std::ranges::fill(found, 0.5f);
      add_on_host(dtype, numbers, expected);
      ASSERT_EQ(STRETTO_CUDA_ADD(&rounding, nullptr), 0);
      expect_equal(std::span(found).subspan(offset), expected, what + ", the sum");
    }
  }
}

// The greatest, and of equal ones the first.
std::vector<std::int64_t> select_on_host(std::span<const float> values, std::size_t greatest) {
  std::vector<std::int64_t> indices(values.size());
  std::iota(indices.begin(), indices.end(), 0);
  std::ranges::stable_sort(indices, std::ranges::greater(), [&](std::int64_t i) {
    return kernel::magnitude_bits(values[static_cast<std::size_t>(i)]);
  });
  indices.resize(greatest);
  std::ranges::sort(indices);
  return indices;
}

TEST(CodecSelection, TakesTheGreatestElements) {
  Random random(testing::draw_seed());
  for (const std::size_t count : {1, 255, 4097, 20'000}) {
    for (const std::size_t greatest : {count / 100 + 1, count}) {
      const std::size_t offset = random.below(2);
      std::vector<float> values(offset);
      const Kind kind = kKinds[random.below(std::size(kKinds))];
      std::ranges::copy(values_of(count, kind, random), std::back_inserter(values));
      std::vector<std::int64_t> found(greatest + 1, -1);
      std::vector<std::uint32_t> room(selection_room(count) + 1, 0xEEEEEEEE);
      const Selection selection{values.data() + offset, count, greatest, found.data(), room.data()};
      ASSERT_EQ(STRETTO_CUDA_SELECT(&selection, nullptr), 0);
      EXPECT_EQ(room.back(), 0xEEEEEEEE);
      auto expected = select_on_host(std::span(values).subspan(offset), greatest);
      expected.push_back(-1);
      EXPECT_EQ(found, expected) << greatest << " of " << count << " from " << offset << " on";
    }
  }
}

}  // namespace
}  // namespace stretto::cuda
