// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The arithmetic of the device's threads, run on the host, against the host's kernels. Where there
// is a device, device_test.cc shows that it computes the same.

#include "stretto/cuda/reduction.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "stretto/base/random.h"
#include "stretto/cuda/visit_reduction.h"
#include "stretto/kernel/reduce.h"
#include "stretto/kernel/scale.h"

namespace stretto::cuda {
namespace {

// Numbers below 2, with a zero and an infinity now and then. Most packs of them have no NaN.
void make_numbers(std::span<std::byte> bytes, DType dtype, std::size_t part, Random& random) {
  const std::uint64_t infinity = dtype == DType::f16    ? 0x7C00
                                 : dtype == DType::bf16 ? 0x7F80
                                 : part == 4            ? 0x7F800000
                                                        : 0x7FF0000000000000;
  for (std::size_t i = 0; i < bytes.size(); i += part) {
    bytes[i + part - 1] &= std::byte{0xBF};
    const std::uint64_t special = random.below(2) == 0 ? infinity : 0;
    if (random.below(100) == 0) std::memcpy(&bytes[i], &special, part);
  }
}

enum class Bits { any, numbers };

// Random numbers of all sizes, infinities, and quiet and signalling NaN; or only numbers.
std::vector<std::byte> bytes_of(std::size_t bytes, DType dtype, Bits bits, Random& random) {
  std::vector<std::byte> result(bytes);
  for (std::byte& byte : result) byte = static_cast<std::byte>(random.next());
  const std::size_t part = dtype == DType::c64 ? 4 : dtype == DType::c128 ? 8 : size_bytes(dtype);
  if (!is_floating_point(dtype)) return result;
  if (bits == Bits::numbers) {
    make_numbers(result, dtype, part, random);
    return result;
  }
  // Every fourth element has the exponent of infinity and NaN.
  for (std::size_t i = part - 1; i < bytes; i += 4 * part) {
    result[i] |= std::byte{0x7F};
    if (part > 1) result[i - 1] |= std::byte{0x80};
    // An infinity now and then.
    if (random.below(3) == 0) {
      for (std::size_t k = i + 1 - part; k + 1 < i; ++k) result[k] = std::byte{0};
    }
  }
  return result;
}

struct Case {
  DType dtype;
  DType output;
  ReduceOp op;
  int inputs;
  int divisor;
  Bits bits = Bits::any;
};

template <class Format>
constexpr int kPack = 16 / sizeof(typename Format::In);

// Writes packs of elements, and the remaining elements one by one, as a device does.
template <class Format, class OfPack, class OfElement>
void write_packs(std::vector<std::byte>& result, std::size_t count, const OfPack& of_pack,
                 const OfElement& of_element) {
  using Out = typename Format::Out;
  constexpr std::size_t kEach = kPack<Format>;
  for (std::size_t i = 0; i < count / kEach; ++i) {
    reinterpret_cast<Pack<Out, kPack<Format>>*>(result.data())[i] = of_pack(i);
  }
  for (std::size_t i = count / kEach * kEach; i < count; ++i) {
    reinterpret_cast<Pack<Out, 1>*>(result.data())[i] = of_element(i);
  }
}

// Compares packs of elements, and remaining elements one by one, with the host's kernel.
void compare(const Case& problem, Random& random) {
  constexpr std::size_t kCount = 67;
  std::vector<std::vector<std::byte>> buffers;
  std::vector<kernel::Input> inputs;
  Operands operands{};
  for (int i = 0; i < problem.inputs; ++i) {
    // A single input of 16 bits never has the dtype of the result: one of the two is f32.
    const bool mixes = problem.inputs == 1 ? problem.output == problem.dtype : random.below(2) == 0;
    // Without partials, numbers are computed the quick way.
    const bool partial = accumulation_dtype(problem.dtype) != problem.dtype && mixes &&
                         (problem.bits == Bits::any || problem.inputs == 1);
    const DType dtype = partial ? accumulation_dtype(problem.dtype) : problem.dtype;
    buffers.push_back(bytes_of(kCount * size_bytes(dtype), dtype, problem.bits, random));
    inputs.push_back({.data = buffers.back().data(), .dtype = dtype});
    operands.inputs[i] = inputs.back().data;
    if (partial) operands.partial_inputs |= 1u << i;
  }
  std::vector<std::byte> expected(kCount * size_bytes(problem.output));
  void* const output = expected.data();
  ASSERT_TRUE(kernel::reduce({.dtype = problem.dtype,
                              .output_dtype = problem.output,
                              .op = problem.op,
                              .divisor = problem.divisor,
                              .count = kCount,
                              .inputs = inputs,
                              .outputs = {&output, 1}})
                  .ok());
  operands.input_count = problem.inputs;
  operands.divisor = problem.divisor;
  std::vector<std::byte> result(expected.size());
  const auto run = [&]<class Format, class Op>(Format, Op, int parts) {
    write_packs<Format>(
        result, kCount * static_cast<std::size_t>(parts),
        [&](std::size_t i) { return reduce_pack<Format, Op, kPack<Format>>(operands, i); },
        [&](std::size_t i) { return reduce_pack<Format, Op>(operands, i); });
  };
  const bool known = visit_reduction(problem.dtype, problem.output, problem.op, run);
  ASSERT_TRUE(known);
  EXPECT_EQ(result, expected) << name(problem.op) << " of " << problem.inputs << " "
                              << name(problem.dtype) << " into " << name(problem.output)
                              << " divided by " << problem.divisor;
}

TEST(DeviceReduction, HasTheBitsOfTheHost) {
  Random random(18);
  for (int d = 0; d < kDTypeCount; ++d) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      const auto dtype = static_cast<DType>(d);
      const auto op = static_cast<ReduceOp>(o);
      if (!supports(op, dtype)) continue;
      for (int inputs = 2; inputs <= kInputsMax; ++inputs) {
        const int divisor = op == ReduceOp::mean ? inputs : 1;
        for (const Bits bits : {Bits::any, Bits::numbers}) {
          compare({dtype, dtype, op, inputs, divisor, bits}, random);
          compare({dtype, accumulation_dtype(dtype), op, inputs, divisor, bits}, random);
        }
      }
    }
  }
}

TEST(DeviceReduction, OfOneInputIsACast) {
  Random random(19);
  for (const DType narrow : {DType::f16, DType::bf16}) {
    compare({narrow, narrow, ReduceOp::sum, 1, 1}, random);      // From f32.
    compare({narrow, DType::f32, ReduceOp::sum, 1, 1}, random);  // To f32.
    compare({narrow, narrow, ReduceOp::mean, 1, 8}, random);
  }
}

TEST(DeviceReduction, ProductWithAFactorHasTheBitsOfTheHost) {
  Random random(20);
  constexpr std::size_t kCount = 999;
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    const std::size_t bytes = kCount * size_bytes(dtype);
    const auto source = bytes_of(bytes, dtype, Bits::any, random);
    std::vector<std::byte> expected(bytes), result(bytes);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    for (const double factor : {0.1, -1.0 / 3, 70'000.0, 0.0, -0.0, kInfinity}) {
      ASSERT_TRUE(kernel::scale(factor, {source.data(), kCount, dtype}, expected.data()).ok());
      Operands operands{};
      operands.inputs[0] = source.data();
      operands.factor = factor;
      const auto run = [&]<class Format, class Op>(Format, Op, int) {
        if constexpr (kTakesFactor<Format, Op>) {
          write_packs<Format>(
              result, kCount,
              [&](std::size_t i) { return scaled_pack<Format, kPack<Format>>(operands, i); },
              [&](std::size_t i) { return scaled_pack<Format>(operands, i); });
        }
      };
      ASSERT_TRUE(visit_reduction(dtype, dtype, ReduceOp::product, run));
      EXPECT_EQ(result, expected) << name(dtype) << " times " << factor;
    }
  }
}

TEST(DeviceReduction, ComparesWithAHostThatCanDiffer) {
  const std::uint32_t left = 0x7fa00000, right = 0xffc00001;  // Two NaN. The first is signalling.
  Operands operands{};
  operands.inputs[0] = &left;
  operands.inputs[1] = &right;
  operands.input_count = 2;
  const float sum = reduce_pack<Plain<float>, Sum>(operands, 0).values[0];
  EXPECT_EQ(std::bit_cast<std::uint32_t>(sum), 0x7fe00000u);
  const float least = reduce_pack<Plain<float>, Min>(operands, 0).values[0];
  EXPECT_EQ(std::bit_cast<std::uint32_t>(least), left);
}

TEST(DeviceReduction, RefusesWhatHasNoMeaning) {
  const auto never = []<class Format, class Op>(Format, Op, int) { FAIL(); };
  EXPECT_FALSE(visit_reduction(DType::f8_e4m3, DType::f8_e4m3, ReduceOp::sum, never));
  EXPECT_FALSE(visit_reduction(DType::c64, DType::c64, ReduceOp::min, never));
  EXPECT_FALSE(visit_reduction(DType::f32, DType::f32, ReduceOp::bit_and, never));
}

}  // namespace
}  // namespace stretto::cuda
