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
  // How groups are made is nobody's layout.
  uneven.layout = kSetUpLayout;
  EXPECT_EQ(describe_against(gather, uneven), "all_gather(u8 [8])");
  EXPECT_EQ(describe_against(uneven, gather), "all_gather(u8 [8] for a new group)");
  EXPECT_EQ(first_difference(gather, uneven), "purpose (making a group)");
}

TEST(OperationTest, DifferenceAgreesWithEquality) {
  OperationDescriptor other = kAllReduce;
  EXPECT_EQ(other, kAllReduce);
  other.algorithm = 1;
  EXPECT_NE(other, kAllReduce);
}

}  // namespace
}  // namespace stretto
