// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/replica_check.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/failures.h"
#include "tests/support/run_ranks.h"

namespace stretto::reducer {
namespace {

ReplicaItem parameter(const std::string& name, const std::string& shape,
                      const std::string& dtype = "f32") {
  return {"parameter", name, {{"shape", shape}, {"dtype", dtype}}};
}

using ItemsOfRank = std::function<std::vector<ReplicaItem>(int rank)>;

// Checks `items` on `size` ranks. Expects a Mismatch with `text` on each of them, or none if `text`
// is empty.
void expect_mismatch(int size, const ItemsOfRank& items, const std::string& text) {
  run_ranks(size, [&](Communicator& communicator) {
    const std::string message = testing::message_of<Mismatch>(
        [&] { check_replicas_described_alike(communicator, items(communicator.rank().value())); });
    const std::string prefix = "the model is not the same on all ranks: ";
    EXPECT_EQ(message, text.empty() ? "" : prefix + text);
  });
}

TEST(ReplicaCheck, EqualDescriptionsPass) {
  expect_mismatch(
      3, [](int) { return std::vector{parameter("a", "[2]")}; }, "");
  expect_mismatch(
      2, [](int) { return std::vector<ReplicaItem>(); }, "");
}

TEST(ReplicaCheck, ADifferentFactIsNamedWithBothValues) {
  expect_mismatch(
      3,
      [](int rank) {
        return std::vector{parameter("a", "[2]"), parameter("b", rank == 1 ? "[4, 3]" : "[4]")};
      },
      "parameter 'b' has shape [4] on ranks 0, 2; [4, 3] on rank 1");
}

TEST(ReplicaCheck, ALaterFactIsFoundToo) {
  expect_mismatch(
      2, [](int rank) { return std::vector{parameter("a", "[2]", rank == 0 ? "f32" : "f64")}; },
      "parameter 'a' has dtype f32 on rank 0; f64 on rank 1");
}

TEST(ReplicaCheck, ADifferentNameIsShownWithItsPosition) {
  expect_mismatch(
      2, [](int rank) { return std::vector{parameter(rank == 0 ? "fc" : "head", "[2]")}; },
      "entry 0 is parameter 'fc' on rank 0; parameter 'head' on rank 1");
}

TEST(ReplicaCheck, AMissingItemIsNamed) {
  expect_mismatch(
      2,
      [](int rank) {
        std::vector items = {parameter("a", "[2]")};
        if (rank == 1) items.push_back(parameter("extra", "[1]"));
        return items;
      },
      "entry 1 is nothing on rank 0; parameter 'extra' on rank 1");
}

TEST(ReplicaCheck, NamesCannotBreakTheFormat) {
  expect_mismatch(
      2, [](int rank) { return std::vector{parameter("a\n\tb", rank == 0 ? "[1]" : "[2]")}; },
      "parameter 'a  b' has shape [1] on rank 0; [2] on rank 1");
}

TEST(ReplicaCheck, DivergedValuesNameTheFirstDifferenceAndItsRanks) {
  run_ranks(5, [](Communicator& job, int rank) {
    const auto group = job.split({.color = rank == 0 ? std::nullopt : std::optional(0)});
    if (group == nullptr) return;
    const std::vector<std::string> names = {"a", "b", "c"};
    std::vector<std::uint64_t> hashes = {1, 2, 3};
    EXPECT_NO_THROW(check_replicas_hash_alike(*group, names, hashes));
    if (rank >= 3) hashes[1] = 7;
    const Status mismatch =
        testing::failure_of<Mismatch>([&] { check_replicas_hash_alike(*group, names, hashes); });
    EXPECT_EQ(mismatch.message(), "replicas have diverged: b on ranks 3, 4 differs from rank 1");
    EXPECT_EQ(mismatch.rank(), Rank(3));
  });
}

TEST(ReplicaCheck, DifferentNumbersAreSaidAndTheGroupGoesOn) {
  run_ranks(4, [](Communicator& job, int rank) {
    const auto group = job.split({.color = rank == 0 ? std::nullopt : std::optional(0)});
    if (group == nullptr) return;
    const std::size_t count = rank == 2 ? 3 : 2;
    const std::string message = testing::message_of<Mismatch>([&] {
      check_replicas_hash_alike(*group, std::vector<std::string>(count, "a"),
                                std::vector<std::uint64_t>(count, 1));
    });
    EXPECT_EQ(message,
              "replicas have diverged: 2 parameters on ranks 1, 3; 3 parameters on rank 2");
    EXPECT_NO_THROW(check_replicas_hash_alike(*group, {}, {}));
  });
}

}  // namespace
}  // namespace stretto::reducer
