// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The measurements of ./dev bench gpus, on doubles, with ranks that are threads. bench/gpus_test.py
// tests its driver with one rank, because the double of NCCL knows no other processes.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bench/drivers/gpu_systems.h"
#include "tests/support/double_ranks.h"

namespace stretto::bench {
namespace {

using testing::Double;
using testing::DoubleRanks;

const std::vector<Point> kPoints = {
    {.bytes = 4}, {.bytes = 20'004}, {.bytes = 4096, .in_flight = 3}};
constexpr int kRounds = 2;

// Returns rank 0's lines.
std::vector<Line> measure(DoubleRanks& nccl, DoubleRanks* cuda, const RankVector<int>& hosts) {
  RankVector<std::vector<Line>> lines(nccl.size());
  nccl.on_all([&](Communicator& own) {
    const Rank rank = own.rank();
    const GpuRank all{own, &own, cuda ? (*cuda)[rank.value()].get() : nullptr, hosts};
    lines[rank] = measure_all_reduce(all, kPoints, kRounds, testing::nccl_variables());
  });
  EXPECT_EQ(Double::get().control().misuse, "");
  return lines[0];
}

// Expects that each of `systems` was measured at each point, and as often as the point says.
void expect_all(const std::vector<Line>& lines, const std::vector<std::string>& systems) {
  ASSERT_EQ(lines.size(), systems.size() * kPoints.size());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].system, systems[i % systems.size()]);
    EXPECT_EQ(lines[i].point.bytes, kPoints[i / systems.size()].bytes);
    ASSERT_EQ(lines[i].us.size(), static_cast<std::size_t>(kRounds));
    for (int round = 0; round < kRounds; ++round) {
      const auto at = static_cast<std::size_t>(round);
      EXPECT_GT(lines[i].call_us[at], 0);
      EXPECT_GT(lines[i].us[at], lines[i].call_us[at]);
    }
  }
}

class NcclDoubleBench : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { Double::get().reset(); }
};
INSTANTIATE_TEST_SUITE_P(, NcclDoubleBench, ::testing::Values(2, 3));

TEST_P(NcclDoubleBench, MeasuresAllSystemsOfAHost) {
  const int size = GetParam();
  DoubleRanks nccl({.size = size}), cuda({.size = size, .maps_devices = true});
  const auto lines = measure(nccl, &cuda, RankVector<int>(size));
  expect_all(lines, {"NCCL alone", "stretto nccl", "stretto cuda"});
}

TEST_F(NcclDoubleBench, MeasuresOneRank) {
  DoubleRanks nccl({.size = 1});
  expect_all(measure(nccl, nullptr, {0}), {"NCCL alone", "stretto nccl"});
}

TEST_F(NcclDoubleBench, MeasuresTwoLevelsOfHosts) {
  DoubleRanks nccl({.size = 4});
  auto lines = measure(nccl, nullptr, std::vector<int>{0, 0, 1, 1});
  // With several operations in flight, each would wait for the previous one.
  const auto is_two_level = [](const Line& line) { return line.system.ends_with("two-level"); };
  EXPECT_EQ(std::ranges::count_if(lines, is_two_level), 2);
  EXPECT_EQ(std::erase_if(lines, is_two_level), 2u);
  expect_all(lines, {"NCCL alone", "stretto nccl"});
}

TEST(NcclDoubleBenchLevels, AreTwoWhereHostsHaveAsManyRanksAndSeveral) {
  EXPECT_TRUE(have_two_levels(std::vector<int>{0, 0, 1, 1}));
  EXPECT_TRUE(have_two_levels(std::vector<int>{0, 1, 0, 1, 2, 2}));
  EXPECT_FALSE(have_two_levels(std::vector<int>{0}));
  EXPECT_FALSE(have_two_levels(std::vector<int>{0, 0}));
  EXPECT_FALSE(have_two_levels(std::vector<int>{0, 1}));
  EXPECT_FALSE(have_two_levels(std::vector<int>{0, 0, 1}));
}

}  // namespace
}  // namespace stretto::bench
