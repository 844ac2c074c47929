// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <array>
#include <cmath>
#include <complex>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_set>

#include <gtest/gtest.h>

#include "stretto/base/dtype.h"
#include "stretto/base/half.h"
#include "stretto/base/id.h"
#include "stretto/base/operation.h"
#include "stretto/base/reduce_op.h"
#include "stretto/base/view.h"

namespace stretto {
namespace {

DType dtype_number(int number) { return static_cast<DType>(number); }

TEST(DTypeTest, WireNumbersReadBackAndOthersAreRefused) {
  for (int number = 0; number < 256; ++number) {
    const auto dtype = dtype_from_wire(static_cast<std::uint8_t>(number));
    EXPECT_EQ(dtype.has_value(), number < kDTypeCount) << number;
    if (dtype) {
      EXPECT_EQ(*dtype, dtype_number(number));
    }
  }
}

template <class T>
void expect_described(int number_on_the_wire, std::string_view expected_name) {
  EXPECT_EQ(static_cast<int>(dtype_of<T>), number_on_the_wire) << expected_name;
  EXPECT_EQ(name(dtype_of<T>), expected_name);
  EXPECT_EQ(size_bytes(dtype_of<T>), sizeof(T)) << expected_name;
}

TEST(DTypeTest, NumbersOnTheWireNamesAndSizesNeverChange) {
  expect_described<std::uint8_t>(0, "u8");
  expect_described<std::int8_t>(1, "i8");
  expect_described<std::int32_t>(2, "i32");
  expect_described<std::int64_t>(3, "i64");
  expect_described<Half>(4, "f16");
  expect_described<BFloat16>(5, "bf16");
  expect_described<float>(6, "f32");
  expect_described<double>(7, "f64");
  expect_described<bool>(8, "bool");
  expect_described<std::int16_t>(9, "i16");
  expect_described<std::uint16_t>(10, "u16");
  expect_described<std::uint32_t>(11, "u32");
  expect_described<std::uint64_t>(12, "u64");
  expect_described<std::complex<float>>(13, "c64");
  expect_described<std::complex<double>>(14, "c128");
  expect_described<Float8E4M3>(15, "f8_e4m3");
  expect_described<Float8E5M2>(16, "f8_e5m2");
  EXPECT_EQ(kDTypeCount, 17);
}

TEST(DTypeTest, SmallFloatsAccumulateInF32AndTheRestInThemselves) {
  EXPECT_EQ(accumulation_dtype(DType::f16), DType::f32);
  EXPECT_EQ(accumulation_dtype(DType::bf16), DType::f32);
  for (int number = 0; number < kDTypeCount; ++number) {
    const DType dtype = dtype_number(number);
    if (dtype == DType::f16 || dtype == DType::bf16) continue;
    EXPECT_EQ(accumulation_dtype(dtype), dtype) << name(dtype);
  }
}

TEST(DTypeTest, NamesTellFloatingPointAndComplex) {
  for (int number = 0; number < kDTypeCount; ++number) {
    const DType dtype = dtype_number(number);
    EXPECT_EQ(is_floating_point(dtype), name(dtype).find('f') != std::string_view::npos)
        << name(dtype);
    EXPECT_EQ(is_complex(dtype), name(dtype).front() == 'c') << name(dtype);
  }
}

TEST(HalfTest, IsMadeOfANumberAndNotOfItsBits) {
  EXPECT_EQ(Half(2.0f).bits, 0x4000);
  EXPECT_EQ(Half(-1.5f).bits, 0xbe00);
  EXPECT_EQ(static_cast<float>(Half::from_bits(0x3c00)), 1.0f);
  EXPECT_EQ(BFloat16(2.0f).bits, 0x4000);
  EXPECT_EQ(BFloat16(-3.0f).bits, 0xc040);
  EXPECT_EQ(static_cast<float>(BFloat16::from_bits(0x3f80)), 1.0f);
}

TEST(HalfTest, EndsOfTheRange) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Half(65504.0f).bits, 0x7bff);
  EXPECT_EQ(Half(65519.0f).bits, 0x7bff);
  EXPECT_EQ(Half(65520.0f).bits, 0x7c00);
  EXPECT_EQ(Half(1e9f).bits, 0x7c00);
  EXPECT_EQ(Half(-infinity).bits, 0xfc00);
  EXPECT_EQ(Half(0x1p-24f).bits, 1);
  EXPECT_EQ(Half(0x1p-25f).bits, 0);
  EXPECT_EQ(Half(0x1.002p-25f).bits, 1);
  EXPECT_EQ(Half(-0.0f).bits, 0x8000);
  EXPECT_TRUE(std::isnan(static_cast<float>(Half(std::nanf("")))));
  EXPECT_EQ(BFloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::nanf("")))));
}

// Every finite number survives, and a value between two numbers is rounded to the nearer one.
template <class Number>
void check_all(std::uint16_t end) {
  for (std::uint16_t bits = 0; bits < end; ++bits) {
    const auto value = static_cast<float>(Number::from_bits(bits));
    ASSERT_EQ(Number(value).bits, bits);
    ASSERT_EQ(Number(-value).bits, bits | 0x8000);
    if (bits + 1 == end) break;
    const auto next = static_cast<float>(Number::from_bits(static_cast<std::uint16_t>(bits + 1)));
    const float middle = value + (next - value) / 2;
    const int even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(Number(middle).bits, even) << bits;
    ASSERT_EQ(Number(std::nextafter(middle, 0.0f)).bits, bits);
    ASSERT_EQ(Number(std::nextafter(middle, next)).bits, bits + 1);
  }
}

TEST(HalfTest, RoundsToTheNearest) {
  check_all<Half>(0x7c00);
  check_all<BFloat16>(0x7f80);
}

TEST(IdTest, ReadsLikeANumber) {
  const Rank root = 3;
  EXPECT_EQ(root.value(), 3);
  EXPECT_EQ(static_cast<std::size_t>(root), 3u);
  EXPECT_LT(Rank(2), root);
  EXPECT_EQ(Rank(), Rank(0));
}

TEST(IdTest, KindsCannotBeMixedUp) {
  EXPECT_FALSE((std::is_convertible_v<Rank, ChunkIndex>));
  EXPECT_FALSE((std::is_constructible_v<Rank, ChunkIndex>));
  EXPECT_FALSE((std::is_convertible_v<Rank, int>));
}

TEST(IdTest, IsPrintedAsItsNumber) {
  std::ostringstream text;
  text << "rank " << Rank(7) << ", " << kAnyRank;
  EXPECT_EQ(text.str(), "rank 7, -1");
}

TEST(IdTest, CanBeHashed) {
  const std::unordered_set<Rank> ranks{0, 1, 1, 2};
  EXPECT_EQ(ranks.size(), 3u);
  EXPECT_TRUE(ranks.contains(2));
  EXPECT_FALSE(ranks.contains(3));
}

TEST(ViewTest, DefaultIsEmpty) {
  const View view;
  EXPECT_EQ(view.bytes(), 0u);
  EXPECT_TRUE(view.span().empty());
}

TEST(ViewTest, KnowsItsBytes) {
  std::array<float, 5> values{};
  const View view = view_of(std::span<float>(values));
  EXPECT_EQ(view.count, 5u);
  EXPECT_EQ(view.dtype, DType::f32);
  EXPECT_EQ(view.bytes(), 20u);
  EXPECT_EQ(view.span().data(), reinterpret_cast<std::byte*>(values.data()));
  EXPECT_EQ(view.span().size(), 20u);
}

TEST(ViewTest, ASliceCountsInElements) {
  std::array<std::int64_t, 6> values{};
  const View slice = view_of(std::span<std::int64_t>(values)).slice(2, 3);
  EXPECT_EQ(slice.data, reinterpret_cast<std::byte*>(&values[2]));
  EXPECT_EQ(slice.count, 3u);
  EXPECT_EQ(slice.dtype, DType::i64);
}

TEST(ViewTest, MutableBecomesConstantAndNotTheOtherWayRound) {
  std::array<Half, 3> values{};
  const View view = view_of(std::span<Half>(values));
  const ConstView constant = view;
  EXPECT_EQ(constant.data, view.data);
  EXPECT_EQ(constant.count, 3u);
  EXPECT_EQ(constant.dtype, DType::f16);
  EXPECT_FALSE((std::is_convertible_v<ConstView, View>));
}

TEST(ViewTest, ConstantElements) {
  const std::array<double, 2> values{1.0, 2.0};
  const ConstView view = const_view_of(std::span<const double>(values));
  EXPECT_EQ(view.bytes(), 16u);
  EXPECT_EQ(view.dtype, DType::f64);
}

TEST(ReduceOpTest, NumbersOnTheWireAndNamesNeverChange) {
  constexpr std::array<std::string_view, kReduceOpCount> kNames = {
      "sum", "mean", "product", "min", "max", "bit_and", "bit_or", "bit_xor"};
  for (std::size_t op = 0; op < kNames.size(); ++op) {
    EXPECT_EQ(name(static_cast<ReduceOp>(op)), kNames[op]);
  }
  EXPECT_EQ(static_cast<int>(ReduceOp::bit_xor), 7);
}

TEST(ReduceOpTest, ADTypeSupportsWhatHasAMeaning) {
  using enum DType;
  for (const DType dtype : {u8, i8, u16, i16, u32, i32, u64, i64}) {
    EXPECT_EQ(supported_ops(dtype), "sum, mean, product, min, max, bit_and, bit_or, bit_xor");
  }
  EXPECT_EQ(supported_ops(boolean), "sum, product, min, max, bit_and, bit_or, bit_xor");
  for (const DType dtype : {f16, bf16, f32, f64}) {
    EXPECT_EQ(supported_ops(dtype), "sum, mean, product, min, max");
  }
  // Complex numbers have no order.
  for (const DType dtype : {c64, c128}) EXPECT_EQ(supported_ops(dtype), "sum, mean, product");
  for (const DType dtype : {f8_e4m3, f8_e5m2}) {
    EXPECT_EQ(supported_ops(dtype),
              std::string("none (") + std::string(name(dtype)) +
                  " cannot be reduced; u8, i8, i32, i64, f16, bf16, f32, f64, bool, i16, u16, "
                  "u32, u64, c64, c128 can)");
  }
}

TEST(ReduceOpTest, ANumberThatIsNoOperationIsSupportedByNothing) {
  EXPECT_FALSE(supports(static_cast<ReduceOp>(200), DType::f32));
}

constexpr OperationDescriptor kAllReduce{.collective = Collective::all_reduce,
                                         .op = ReduceOp::sum,
                                         .dtype = DType::f32,
                                         .count = 1048576};

TEST(OperationTest, DescribesWhatARankDoes) {
  EXPECT_EQ(describe(kAllReduce), "all_reduce(sum f32 [1048576])");
  EXPECT_EQ(describe({.collective = Collective::reduce_scatter,
                      .op = ReduceOp::max,
                      .dtype = DType::i64,
                      .count = 8}),
            "reduce_scatter(max i64 [8])");
  EXPECT_EQ(
      describe(
          {.collective = Collective::broadcast, .dtype = DType::f16, .root = 0, .count = 33554432}),
      "broadcast(f16 [33554432] root 0)");
  EXPECT_EQ(describe({.collective = Collective::all_gather, .dtype = DType::u8, .count = 3}),
            "all_gather(u8 [3])");
  EXPECT_EQ(describe({.collective = Collective::barrier}), "barrier()");
}

TEST(OperationTest, NamesTheFirstFieldThatDiffers) {
  OperationDescriptor other = kAllReduce;
  other.algorithm = 3;
  EXPECT_EQ(first_difference(kAllReduce, other), "algorithm");
  other.layout = 17;
  EXPECT_EQ(first_difference(kAllReduce, other), "layout (shapes of the list)");
  other.root = 1;
  EXPECT_EQ(first_difference(kAllReduce, other), "root");
  other.count = 5;
  EXPECT_EQ(first_difference(kAllReduce, other), "count");
  other.dtype = DType::f64;
  EXPECT_EQ(first_difference(kAllReduce, other), "dtype");
  other.op = ReduceOp::mean;
  EXPECT_EQ(first_difference(kAllReduce, other), "reduce operation");
  other.collective = Collective::broadcast;
  EXPECT_EQ(first_difference(kAllReduce, other), "collective");
}

TEST(OperationTest, SaysInWordsWhatDoesNotShow) {
  OperationDescriptor other = kAllReduce;
  EXPECT_EQ(first_difference(kAllReduce, other), "");
  EXPECT_EQ(describe_against(kAllReduce, other), describe(kAllReduce));
  other.algorithm = 1;
  EXPECT_EQ(describe_against(other, kAllReduce), "all_reduce(sum f32 [1048576]) by ring");
  EXPECT_EQ(describe_against(kAllReduce, other),
            "all_reduce(sum f32 [1048576]) by the chosen algorithm");
  other.algorithm = 200;
  EXPECT_EQ(describe_against(other, kAllReduce), "all_reduce(sum f32 [1048576]) by algorithm 200");
  other = kAllReduce;
  other.layout = 0x1234abcd;
  EXPECT_EQ(describe_against(other, kAllReduce),
            "all_reduce(sum f32 [1048576]) on a list of buffers");
  EXPECT_EQ(describe_against(kAllReduce, other), "all_reduce(sum f32 [1048576]) on one buffer");
  OperationDescriptor gather{
      .collective = Collective::all_gather, .dtype = DType::u8, .count = 8, .layout = 0};
  OperationDescriptor uneven = gather;
  uneven.layout = 99;
  EXPECT_EQ(describe_against(gather, uneven), "all_gather(u8 [8]) with equal shares");
  EXPECT_EQ(describe_against(uneven, gather), "all_gather(u8 [8]) with counts per rank");
  EXPECT_EQ(first_difference(gather, uneven), "layout (counts per rank)");
  const OperationDescriptor barrier{.collective = Collective::barrier};
  const OperationDescriptor monitored{.collective = Collective::barrier,
                                      .layout = kMonitoredLayout};
  EXPECT_EQ(describe_against(monitored, barrier), "monitored_barrier()");
  EXPECT_EQ(describe_against(barrier, monitored), "barrier()");
  EXPECT_EQ(first_difference(monitored, barrier), "collective");
  // A description does not show the layout by which groups are made.
  uneven.layout = kSetUpLayout;
  EXPECT_EQ(describe_against(gather, uneven), "all_gather(u8 [8])");
  EXPECT_EQ(describe_against(uneven, gather), "all_gather(u8 [8] for a new group)");
  EXPECT_EQ(first_difference(gather, uneven), "purpose (making a group)");
}

}  // namespace
}  // namespace stretto
