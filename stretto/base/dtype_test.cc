// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/dtype.h"

#include <complex>
#include <set>
#include <string_view>

#include <gtest/gtest.h>

namespace stretto {
namespace {

DType dtype_number(int number) { return static_cast<DType>(number); }

TEST(DTypeTest, NumbersOnTheWireNeverChange) {
  EXPECT_EQ(static_cast<int>(DType::u8), 0);
  EXPECT_EQ(static_cast<int>(DType::i8), 1);
  EXPECT_EQ(static_cast<int>(DType::i32), 2);
  EXPECT_EQ(static_cast<int>(DType::i64), 3);
  EXPECT_EQ(static_cast<int>(DType::f16), 4);
  EXPECT_EQ(static_cast<int>(DType::bf16), 5);
  EXPECT_EQ(static_cast<int>(DType::f32), 6);
  EXPECT_EQ(static_cast<int>(DType::f64), 7);
  EXPECT_EQ(static_cast<int>(DType::boolean), 8);
  EXPECT_EQ(static_cast<int>(DType::i16), 9);
  EXPECT_EQ(static_cast<int>(DType::u16), 10);
  EXPECT_EQ(static_cast<int>(DType::u32), 11);
  EXPECT_EQ(static_cast<int>(DType::u64), 12);
  EXPECT_EQ(static_cast<int>(DType::c64), 13);
  EXPECT_EQ(static_cast<int>(DType::c128), 14);
  EXPECT_EQ(static_cast<int>(DType::f8_e4m3), 15);
  EXPECT_EQ(static_cast<int>(DType::f8_e5m2), 16);
}

TEST(DTypeTest, WireNumbersReadBackAndOthersAreRefused) {
  for (int number = 0; number < 256; ++number) {
    const auto dtype = dtype_from_wire(static_cast<std::uint8_t>(number));
    EXPECT_EQ(dtype.has_value(), number < kDTypeCount) << number;
    if (dtype) {
      EXPECT_EQ(*dtype, dtype_number(number));
    }
  }
}

TEST(DTypeTest, EveryNameIsKnownAndDifferent) {
  std::set<std::string_view> names;
  for (int number = 0; number < kDTypeCount; ++number) names.insert(name(dtype_number(number)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kDTypeCount));
  EXPECT_FALSE(names.contains("unknown dtype"));
  EXPECT_EQ(name(DType::boolean), "bool");
}

template <class T>
void expect_described(std::string_view expected_name) {
  EXPECT_EQ(name(dtype_of<T>), expected_name);
  EXPECT_EQ(size_bytes(dtype_of<T>), sizeof(T)) << expected_name;
}

TEST(DTypeTest, SizesAreThoseOfTheCppTypes) {
  expect_described<std::uint8_t>("u8");
  expect_described<std::int8_t>("i8");
  expect_described<std::int32_t>("i32");
  expect_described<std::int64_t>("i64");
  expect_described<Half>("f16");
  expect_described<BFloat16>("bf16");
  expect_described<float>("f32");
  expect_described<double>("f64");
  expect_described<bool>("bool");
  expect_described<std::int16_t>("i16");
  expect_described<std::uint16_t>("u16");
  expect_described<std::uint32_t>("u32");
  expect_described<std::uint64_t>("u64");
  expect_described<std::complex<float>>("c64");
  expect_described<std::complex<double>>("c128");
  expect_described<Float8E4M3>("f8_e4m3");
  expect_described<Float8E5M2>("f8_e5m2");
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

}  // namespace
}  // namespace stretto
