// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/operation.h"

#include <gtest/gtest.h>

namespace stretto {
namespace {

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

TEST(OperationTest, EqualOnesHaveNoDifference) {
  EXPECT_EQ(first_difference(kAllReduce, kAllReduce), "");
}

TEST(OperationTest, NamesTheFirstFieldThatDiffers) {
  OperationDescriptor other = kAllReduce;
  other.algorithm = 3;
  EXPECT_EQ(first_difference(kAllReduce, other), "algorithm");
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

TEST(OperationTest, DifferenceAgreesWithEquality) {
  OperationDescriptor other = kAllReduce;
  EXPECT_EQ(other, kAllReduce);
  other.algorithm = 1;
  EXPECT_NE(other, kAllReduce);
}

}  // namespace
}  // namespace stretto
