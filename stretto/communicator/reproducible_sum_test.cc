// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/reproducible_sum.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/base/random.h"
#include "tests/support/failures.h"
#include "tests/support/run_ranks.h"

namespace stretto {
namespace {

using testing::message_of;
using Vector = std::vector<float>;

// The elements have very different magnitudes, so that f32 sums in another order differ in bits.
std::vector<Vector> vectors(std::size_t number, std::size_t count) {
  Random random(number * 1000 + count);
  std::vector<Vector> made(number, Vector(count));
  for (Vector& vector : made) {
    for (float& value : vector) {
      value = std::ldexp(static_cast<float>(random.uniform()) - 0.5f,
                         static_cast<int>(random.below(30)) - 20);
    }
  }
  return made;
}

// The mean by `ranks` ranks that share `all` out at random. It is made twice, in another order.
Vector mean_by(int ranks, std::vector<Vector> all, std::uint64_t seed) {
  Random random(seed);
  std::vector<int> owners;
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::swap(all[i], all[random.below(i + 1)]);
    owners.push_back(static_cast<int>(random.below(static_cast<std::uint64_t>(ranks))));
  }
  Vector of_all;
  std::mutex mutex;
  run_ranks(ranks, [&](Communicator& communicator) {
    ReproducibleSum sum(communicator, all.front().size());
    for (int time = 0; time < 2; ++time) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        const std::size_t at = time == 0 ? i : all.size() - 1 - i;
        if (owners[at] != communicator.rank().value()) continue;
        // The vector is added in two parts.
        const std::span<const float> whole = all[at];
        const std::size_t half = whole.size() / 2;
        sum.add(whole.subspan(half), half);
        sum.add(whole.first(half));
      }
      const auto mean = sum.reduce(1.0 / static_cast<double>(all.size()));
      const std::lock_guard lock(mutex);
      if (of_all.empty()) of_all.assign(mean.begin(), mean.end());
      EXPECT_TRUE(std::ranges::equal(mean, of_all)) << "rank " << communicator.rank().value();
    }
  });
  return of_all;
}

TEST(ReproducibleSum, HasTheSameBitsForAnyNumberOfRanks) {
  for (const std::size_t count : {1, 2, 7, 1000}) {
    const auto all = vectors(23, count);
    const Vector expected = mean_by(1, all, 0);
    for (std::size_t i = 0; i < count; ++i) {
      long double sum = 0;
      for (const Vector& vector : all) sum += static_cast<long double>(vector[i]);
      const auto mean = static_cast<float>(sum / 23);
      EXPECT_LE(std::abs(expected[i] - mean), std::abs(mean) * 0x1p-22f) << i;
    }
    for (int ranks = 2; ranks <= 7; ++ranks) {
      EXPECT_EQ(mean_by(ranks, all, static_cast<std::uint64_t>(ranks)), expected)
          << ranks << " ranks, " << count << " elements";
    }
  }
}

TEST(ReproducibleSum, IsNaNIfAValueHasNoPair) {
  for (const float value : {0x1p24f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    run_ranks(3, [&](Communicator& communicator) {
      ReproducibleSum sum(communicator, 5);
      sum.add(Vector(5, 1));
      if (communicator.rank() == Rank(1)) sum.add(Vector(1, value), 4);
      for (const float each : sum.reduce()) EXPECT_TRUE(std::isnan(each));
      sum.add(Vector(5, 0.5f));
      EXPECT_TRUE(std::ranges::equal(sum.reduce(2), Vector(5, 3)));
      EXPECT_TRUE(std::ranges::equal(sum.reduce(), Vector(5, 0)));
    });
  }
}

TEST(ReproducibleSum, OfNoElementsIsEmpty) {
  run_ranks(2, [](Communicator& communicator) {
    ReproducibleSum sum(communicator, 0);
    sum.add({});
    EXPECT_TRUE(sum.reduce().empty());
  });
}

// The shares of 5 and of 6 elements are equally long.
TEST(ReproducibleSum, ThatDiffersBetweenRanksIsAMismatch) {
  run_ranks(3, [](Communicator& communicator) {
    const bool is_last = communicator.rank() == Rank(2);
    const auto text_of = [&](std::size_t count, double factor) {
      ReproducibleSum sum(communicator, count);
      return message_of<Mismatch>([&] { (void)sum.reduce(factor); });
    };
    EXPECT_NE(text_of(is_last ? 5 : 6, 1).find("ranks reduce ReproducibleSums of 5 to 6 elements"),
              std::string::npos);
    for (const double other : {-1.0, std::nextafter(1.0, 2.0), 0.0}) {
      EXPECT_NE(text_of(6, is_last ? other : 1).find("or by different factors"), std::string::npos);
    }
  });
}

TEST(ReproducibleSum, RefusesWhatIsBeyondItsEnd) {
  run_ranks(1, [](Communicator& communicator) {
    ReproducibleSum sum(communicator, 4);
    const auto text = message_of<InvalidArgument>([&] { sum.add(Vector(3), 2); });
    EXPECT_NE(text.find("3 values from element 2 on are added to a ReproducibleSum of 4"),
              std::string::npos)
        << text;
    EXPECT_NE(message_of<InvalidArgument>([&] { sum.add({}, 5); }), "");
  });
  run_ranks(2, [](Communicator& communicator) {
    const auto most = std::numeric_limits<std::size_t>::max();
    EXPECT_THROW(ReproducibleSum(communicator, most), InvalidArgument);
  });
}

}  // namespace
}  // namespace stretto
