// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/reduce_op.h"

#include <set>

#include <gtest/gtest.h>

namespace stretto {
namespace {

TEST(ReduceOpTest, NumbersOnTheWireNeverChange) {
  EXPECT_EQ(static_cast<int>(ReduceOp::sum), 0);
  EXPECT_EQ(static_cast<int>(ReduceOp::mean), 1);
  EXPECT_EQ(static_cast<int>(ReduceOp::product), 2);
  EXPECT_EQ(static_cast<int>(ReduceOp::min), 3);
  EXPECT_EQ(static_cast<int>(ReduceOp::max), 4);
  EXPECT_EQ(static_cast<int>(ReduceOp::bit_and), 5);
  EXPECT_EQ(static_cast<int>(ReduceOp::bit_or), 6);
  EXPECT_EQ(static_cast<int>(ReduceOp::bit_xor), 7);
}

TEST(ReduceOpTest, EveryNameIsKnownAndDifferent) {
  std::set<std::string_view> names;
  for (int number = 0; number < kReduceOpCount; ++number) {
    names.insert(name(static_cast<ReduceOp>(number)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kReduceOpCount));
  EXPECT_FALSE(names.contains("unknown operation"));
}

TEST(ReduceOpTest, BitwiseOperationsNeedIntegersOrBool) {
  for (ReduceOp op : {ReduceOp::bit_and, ReduceOp::bit_or, ReduceOp::bit_xor}) {
    for (DType dtype : {DType::u8, DType::i8, DType::u16, DType::i16, DType::u32, DType::i32,
                        DType::u64, DType::i64, DType::boolean}) {
      EXPECT_TRUE(supports(op, dtype)) << name(op) << " " << name(dtype);
    }
    for (DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64, DType::c64, DType::c128}) {
      EXPECT_FALSE(supports(op, dtype)) << name(op) << " " << name(dtype);
    }
  }
}

TEST(ReduceOpTest, ListsWhatADTypeSupports) {
  EXPECT_EQ(supported_ops(DType::f32), "sum, mean, product, min, max");
  EXPECT_EQ(supported_ops(DType::i32), "sum, mean, product, min, max, bit_and, bit_or, bit_xor");
  EXPECT_EQ(supported_ops(DType::boolean), "sum, product, min, max, bit_and, bit_or, bit_xor");
}

TEST(ReduceOpTest, ComplexNumbersHaveNoOrder) {
  for (DType dtype : {DType::c64, DType::c128}) {
    EXPECT_EQ(supported_ops(dtype), "sum, mean, product");
    EXPECT_FALSE(supports(ReduceOp::min, dtype));
    EXPECT_FALSE(supports(ReduceOp::max, dtype));
  }
}

TEST(ReduceOpTest, NumbersOf8BitsCannotBeReduced) {
  for (DType dtype : {DType::f8_e4m3, DType::f8_e5m2}) {
    for (int op = 0; op < kReduceOpCount; ++op) {
      EXPECT_FALSE(supports(static_cast<ReduceOp>(op), dtype)) << op;
    }
  }
  EXPECT_EQ(supported_ops(DType::f8_e4m3),
            "none (f8_e4m3 cannot be reduced; u8, i8, i32, i64, f16, bf16, f32, f64, bool, i16, "
            "u16, u32, u64, c64, c128 can)");
}

TEST(ReduceOpTest, ANumberThatIsNoOperationIsSupportedByNothing) {
  EXPECT_FALSE(supports(static_cast<ReduceOp>(200), DType::f32));
}

}  // namespace
}  // namespace stretto
