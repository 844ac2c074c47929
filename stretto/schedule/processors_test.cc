// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/processors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "stretto/schedule/schedule.h"
#include "stretto/schedule/verify/verify.h"

namespace stretto::schedule {
namespace {

using Numbers = std::vector<std::int32_t>;

// Returns all numberings of `ranks` ranks. Each rank has a number before it, or the next one.
std::vector<Numbers> all_numberings(int ranks) {
  std::vector<Numbers> all = {{}};
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Numbers> longer;
    for (const Numbers& numbers : all) {
      const int next = numbers.empty() ? 0 : *std::ranges::max_element(numbers) + 1;
      for (int number = 0; number <= next; ++number) {
        longer.push_back(numbers);
        longer.back().push_back(number);
      }
    }
    all = std::move(longer);
  }
  return all;
}

void expect_right(const Algorithm& algorithm, const Numbers& processors, int root) {
  std::vector<Schedule> schedules;
  for (std::size_t rank = 0; rank < processors.size(); ++rank) {
    const Shape shape{.rank = static_cast<std::int32_t>(rank),
                      .rank_count = static_cast<std::int32_t>(processors.size()),
                      .root = root};
    schedules.push_back(build_for_processors(algorithm, shape, processors));
    const bool is_first = std::ranges::find(processors, processors[rank]) ==
                          processors.begin() + static_cast<std::ptrdiff_t>(rank);
    EXPECT_EQ(schedules.back().steps.size() > schedules.back().sync_count(),
              is_first && algorithm.collective != Collective::barrier)
        << "rank " << rank;
  }
  const Status verified = verify(schedules);
  EXPECT_TRUE(verified.ok()) << verified.message() << ", on "
                             << ::testing::PrintToString(processors);
}

TEST(Processors, TheFirstRankOfEachDoesAllOfItsRanksSteps) {
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.name != "direct_mapped") continue;
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (const Numbers& processors : all_numberings(ranks)) {
        const int roots = has_root(algorithm.collective) ? ranks : 1;
        // A root that is alone has nothing to copy to itself.
        for (int root = 0; root < roots && ranks > 1; ++root) {
          expect_right(algorithm, processors, root);
        }
      }
    }
  }
}

TEST(Processors, OfTheirOwnChangeNothing) {
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.name != "direct_mapped") continue;
    const Shape shape{.rank = 2, .rank_count = 4, .root = 1};
    const Numbers processors = {0, 1, 2, 3};
    const Schedule built = algorithm.build(shape);
    const Schedule merged = build_for_processors(algorithm, shape, processors);
    EXPECT_EQ(merged.places, built.places);
    EXPECT_EQ(merged.steps.size(), built.steps.size());
  }
}

}  // namespace
}  // namespace stretto::schedule
