// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Compares the codecs' GPU kernels, run by threads of the host (simulated/cuda_runtime.h), with the
// kernels for the host. On a GPU, tests/device/extraction_test.cc does the same.

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
#include "tests/support/one_bit_numbers.h"
#include "tests/support/seed.h"

namespace stretto::cuda {
namespace {

static_assert(kThreads == simulated_cuda::kThreads && kWarp == simulated_cuda::kWarp);

using Bytes = std::vector<std::byte>;

enum class Kind {
  common,     // The order of additions matters.
  alike,      // A few integers.
  spread,     // All magnitudes.
  equal,      // Their mean is rounded up.
  great,      // Their sum is infinite.
  no_number,  // Some are infinite or NaN.
};
constexpr Kind kKinds[] = {Kind::common, Kind::alike, Kind::spread,
                           Kind::equal,  Kind::great, Kind::no_number};

struct Format {
  DType dtype;
  bool is_stochastic = false;
};
constexpr std::uint64_t kKey = 0x9E3779B9FFFF7C15;  // Its low half plus an index overflows.

std::vector<float> values_of(std::size_t count, Kind kind, Random& random) {
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(random.uniform()) - 0.5f;
    if (kind == Kind::alike) value = static_cast<float>(random.below(64)) - 32;
    if (kind == Kind::spread) value = std::ldexp(value, static_cast<int>(random.below(240)) - 140);
    if (kind == Kind::spread && random.below(50) == 0) value = -0.0f;
    if (kind == Kind::equal) value = std::copysign(0.1f, value);
    if (kind == Kind::great) value = std::copysign(std::ldexp(1.5f, 127), value);
    if (kind != Kind::no_number || random.below(700) != 0) continue;
    value = random.below(2) == 0 ? std::numeric_limits<float>::quiet_NaN()
                                 : -std::numeric_limits<float>::infinity();
  }
  return values;
}

// Rounds with the kernels for the host. Returns the numbers, and leaves the rest in `values`.
Bytes round_on_host(const Format& format, float limit, std::vector<float>& values) {
  const DType dtype = format.dtype;
  if (dtype == DType::boolean) return testing::one_bit_numbers(values, kSignSection);
  if (dtype == DType::i8) {
    Bytes numbers(values.size() + kernel::int8_blocks(values.size()));
    auto* const codes = reinterpret_cast<std::int8_t*>(numbers.data());
    auto* const scales = reinterpret_cast<std::uint8_t*>(codes + values.size());
    kernel::quantize_int8(values, {format.is_stochastic, kKey}, {codes, values.size()},
                          {scales, kernel::int8_blocks(values.size())});
    return numbers;
  }
  Bytes numbers(values.size() * sizeof(std::uint16_t));
  auto* const codes = reinterpret_cast<std::uint16_t*>(numbers.data());
  kernel::quantize_half(dtype, values, limit, {codes, values.size()});
  for (float& value : values) value = std::isfinite(value) ? value : 0;
  return numbers;
}

void add_on_host(DType dtype, const Bytes& numbers, std::span<float> sums) {
  if (dtype == DType::boolean) {
    testing::add_one_bit_numbers(numbers, kSignSection, sums);
  } else if (dtype == DType::i8) {
    const auto* const codes = reinterpret_cast<const std::int8_t*>(numbers.data());
    const auto* const scales = reinterpret_cast<const std::uint8_t*>(codes + sums.size());
    kernel::add_int8({codes, sums.size()}, {scales, kernel::int8_blocks(sums.size())}, sums);
  } else {
    const auto* const codes = reinterpret_cast<const std::uint16_t*>(numbers.data());
    kernel::add_half(dtype, {codes, sums.size()}, sums);
  }
}

// All NaN count as equal.
void expect_equal(std::span<const float> found, std::span<const float> expected,
                  const std::string& what) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(found[i])) continue;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(found[i]), std::bit_cast<std::uint32_t>(expected[i]))
        << what << ", element " << i;
  }
}

class CodecKernels : public ::testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(, CodecKernels,
                         ::testing::Values(Format{DType::f16}, Format{DType::bf16},
                                           Format{DType::i8}, Format{DType::boolean},
                                           Format{DType::i8, true}),
                         [](const auto& format) {
                           const std::string drawn = format.param.is_stochastic ? "_drawn" : "";
                           return std::string(name(format.param.dtype)) + drawn;
                         });

// Vectors begin at places where four values are one memory access, and elsewhere.
TEST_P(CodecKernels, RoundAndAddAsThoseOfTheHost) {
  const DType dtype = GetParam().dtype;
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
      const Bytes numbers = round_on_host(GetParam(), kLimit, expected);
      const std::string what = fmt::format("{} of {} from {} on, kind {}", name(dtype), count,
                                           offset, static_cast<int>(kind));
      // Room for whole words, and for one more, which must not be written.
      std::vector<std::uint64_t> room(numbers.size() / 8 + 2, 0xEEEEEEEEEEEEEEEE);
      auto* const bytes = reinterpret_cast<std::byte*>(room.data());
      auto* const scales = reinterpret_cast<std::uint8_t*>(bytes + count);
      const Rounding rounding{found.data() + offset,    count, dtype, kLimit, bytes, scales,
                              GetParam().is_stochastic, kKey};
      ASSERT_EQ(STRETTO_CUDA_ROUND(&rounding, nullptr), 0);
      expect_equal(std::span(found).subspan(offset), expected, what + ", what is left");
      EXPECT_EQ(bytes[numbers.size()], std::byte{0xEE}) << what;
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

// Returns the indices of the greatest values. Among equal values, the first are taken.
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
