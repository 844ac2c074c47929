// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/sparse_rows.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>

#include "stretto/base/error.h"
#include "tests/support/failures.h"
#include "tests/support/run_ranks.h"

namespace stretto {
namespace {

using testing::message_of;

template <class T>
SparseRows<T> rows_of(int rank, std::size_t row_elements) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  SparseRows<T> rows;
  const std::size_t count = rank == 1 ? 0 : random() % 20;
  for (std::size_t i = 0; i < count; ++i) {
    rows.rows.push_back(static_cast<std::int64_t>(random() % 12));
    for (std::size_t e = 0; e < row_elements; ++e) {
      // Values differ much in size, so that another order of additions would show.
      rows.values.push_back(static_cast<T>(random() % 1000) *
                            static_cast<T>(random() % 2 == 0 ? 1 : 100003) / static_cast<T>(7));
    }
  }
  return rows;
}

template <class T>
void expect_serial_sums(int size, std::size_t row_elements, ReduceOp op) {
  std::map<std::int64_t, std::vector<T>> expected;
  const auto add = [&](std::map<std::int64_t, std::vector<T>>& sums, std::int64_t row,
                       const T* values) {
    auto [found, added] = sums.try_emplace(row, row_elements);
    for (std::size_t e = 0; e < row_elements; ++e) {
      found->second[e] = added ? values[e] : found->second[e] + values[e];
    }
  };
  for (int rank = 0; rank < size; ++rank) {
    const auto rows = rows_of<T>(rank, row_elements);
    std::map<std::int64_t, std::vector<T>> own;
    for (std::size_t i = 0; i < rows.rows.size(); ++i) {
      add(own, rows.rows[i], rows.values.data() + i * row_elements);
    }
    for (const auto& [row, values] : own) add(expected, row, values.data());
  }
  run_ranks(size, [&](Communicator& comm) {
    const auto result = all_reduce_rows(comm, rows_of<T>(comm.rank().value(), row_elements),
                                        {.row_elements = row_elements, .op = op});
    std::vector<std::int64_t> rows;
    std::vector<T> values;
    for (const auto& [row, sums] : expected) {
      rows.push_back(row);
      for (const T sum : sums) {
        values.push_back(op == ReduceOp::mean && size > 1 ? sum / static_cast<T>(size) : sum);
      }
    }
    EXPECT_EQ(result.rows, rows);
    EXPECT_EQ(result.values, values);
  });
}

TEST(SparseRows, AreAddedUpInTheOrderOfRanks) {
  for (const int size : {1, 2, 3, 5}) {
    for (const std::size_t row_elements : {1, 3}) {
      expect_serial_sums<float>(size, row_elements, ReduceOp::sum);
      expect_serial_sums<double>(size, row_elements, ReduceOp::mean);
      expect_serial_sums<std::int32_t>(size, row_elements, ReduceOp::mean);
      expect_serial_sums<std::int64_t>(size, row_elements, ReduceOp::sum);
    }
  }
}

TEST(SparseRows, OfIntegersWrap) {
  constexpr auto kMost = std::numeric_limits<std::int32_t>::max();
  run_ranks(2, [](Communicator& comm) {
    const SparseRows<std::int32_t> rows{.rows = {1}, .values = {kMost}};
    EXPECT_EQ(all_reduce_rows(comm, rows).values, std::vector<std::int32_t>{-2});
  });
}

TEST(SparseRows, OfNobodyAreNone) {
  run_ranks(3, [](Communicator& comm) {
    const auto result = all_reduce_rows(comm, SparseRows<float>());
    EXPECT_TRUE(result.rows.empty() && result.values.empty());
  });
}

TEST(SparseRows, ThatDoNotFitAreRefusedOnAllRanks) {
  run_ranks(3, [](Communicator& comm) {
    SparseRows<float> rows{.rows = {1, 2}, .values = {1, 2, 3, 4}};
    if (comm.rank() == 1) rows.values.pop_back();
    expect_contains(message_of<InvalidArgument>(
                        [&] { (void)all_reduce_rows(comm, rows, {.row_elements = 2}); }),
                    "all_reduce_rows: rank 1 has values");
    EXPECT_THROW((void)all_reduce_rows(comm, rows, {.row_elements = 1, .op = ReduceOp::max}),
                 InvalidArgument);
    // The ranks' rows have different lengths, and each is valid by itself.
    const std::size_t elements = comm.rank() == 2 ? 1 : 2;
    SparseRows<float> own{.rows = {7}, .values = std::vector<float>(elements, 1)};
    EXPECT_THROW((void)all_reduce_rows(comm, own, {.row_elements = elements}), InvalidArgument);
  });
}

TEST(SparseRows, OfOtherTypesOrOutOfRangeAreRefusedAndBothAreNamed) {
  const auto refusal = [](Communicator& comm, const SparseRows<float>& rows,
                          const SparseOptions& options) -> std::string {
    return message_of<InvalidArgument>([&] { (void)all_reduce_rows(comm, rows, options); });
  };
  run_ranks(2, [&](Communicator& comm) {
    const bool first = comm.rank() == 0;
    for (const std::int64_t row : {std::int64_t{-1}, (std::int64_t{1} << 32) - 1}) {
      expect_contains(refusal(comm, {.rows = {first ? 1 : row}, .values = {1}}, {}),
                      "rank 1 has a row that is negative or not below 4294967295");
    }
    const SparseRows<float> one{.rows = {1}, .values = {1}};
    expect_contains(
        refusal(comm, one, {.values = first ? ValueFormat::f32 : ValueFormat::bf16}),
        "rows are of 1 elements of f32 on rank 0 and of 1 elements of f32 as bf16 on rank 1");
    EXPECT_NE(refusal(comm, one, {.values = ValueFormat::int8}), "");
    EXPECT_EQ(refusal(comm, one, {.matrix_rows = 2}), "");
    expect_contains(refusal(comm, {.rows = {first ? 1 : 2}, .values = {1}}, {.matrix_rows = 2}),
                    "rank 1 has a row that is negative or not below 2");
    expect_contains(refusal(comm, one, {.matrix_rows = first ? 2u : 3u}),
                    "of f32 in a matrix of 2 on rank 0 and of 1 elements of f32 in a matrix of 3 "
                    "on rank 1");
  });
}

TEST(SparseRows, ThatAreRefusedAreRefusedAgainAndTheCommunicatorLives) {
  run_ranks(2, [](Communicator& comm) {
    SparseRows<float> rows{.rows = {1, 2}, .values = {1, 2}};
    if (comm.rank() == 1) rows.values.pop_back();
    auto work = start_all_reduce_rows(comm, rows);
    const auto send = [&] { work.send(); };
    const auto wait = [&] { (void)work.wait(); };
    const std::string refusal = message_of<InvalidArgument>(send);
    expect_contains(refusal, "rank 1 has values");
    EXPECT_EQ(message_of<InvalidArgument>(wait), refusal);
    EXPECT_EQ(message_of<InvalidArgument>(wait), refusal);
    rows.values.resize(2, 2);
    EXPECT_EQ(all_reduce_rows(comm, rows).values, (std::vector<float>{2, 4}));
  });
}

TEST(SparseRows, OfAMatrixOfUnknownHeightAreLimited) {
  run_ranks(2, [](Communicator& comm) {
    const bool first = comm.rank() == 0;
    const SparseRows<float> two{.rows = {1, 2}, .values = {1, 2, 3, 4}};
    const auto refusal = [&](std::size_t max_bytes, std::size_t matrix_rows) -> std::string {
      return message_of<InvalidArgument>([&] {
        (void)all_reduce_rows(
            comm, two, {.row_elements = 2, .matrix_rows = matrix_rows, .max_bytes = max_bytes});
      });
    };
    EXPECT_EQ(refusal(4 * 8, 0), "");
    EXPECT_EQ(refusal(0, 3), "");
    expect_contains(refusal(4 * 8 - 1, 0), "ranks have 4 rows together, which is more than");
    expect_contains(refusal(first ? 32 : 64, 0),
                    "of f32 in 32 bytes at most on rank 0 and of 2 elements of f32 in 64 bytes");
  });
}

// Rank 1 starts its operations only after rank 0 has started both of its own and said so.
TEST(SparseRows, StartWithoutWaitingForOthers) {
  run_ranks(2, [](Communicator& comm, int rank) {
    const SparseRows<float> floats{.rows = {rank, 5}, .values = {1, 2}};
    const SparseRows<double> doubles{.rows = {rank}, .values = {3}};
    int token = 0;
    if (rank == 1) comm.recv(std::span(&token, 1), {.from = 0}).wait();
    auto x = start_all_reduce_rows(comm, floats);
    auto y = start_all_reduce_rows(comm, doubles);
    if (rank == 0) comm.send(std::span(&token, 1), {.to = 1}).wait();
    x.send();
    y.send();
    const auto sums = y.wait();
    EXPECT_EQ(sums.rows, (std::vector<std::int64_t>{0, 1}));
    EXPECT_EQ(sums.values, (std::vector<double>{3, 3}));
    EXPECT_EQ(x.wait().values, (std::vector<float>{1, 1, 4}));
    EXPECT_THROW((void)x.wait(), InvalidArgument);
  });
}

TEST(SparseRows, TravelAsBf16AndAreAddedUpAsFloats) {
  run_ranks(3, [](Communicator& comm) {
    const float value = 1 + 0x1p-7f * static_cast<float>(comm.rank().value());
    const SparseRows<float> rows{.rows = {9, 4'000'000'000}, .values = {value, 1 + 0x1p-12f}};
    const auto sum = all_reduce_rows(comm, rows, {.values = ValueFormat::bf16});
    EXPECT_EQ(sum.rows, rows.rows);
    EXPECT_EQ(sum.values, (std::vector<float>{3 + 3 * 0x1p-7f, 3}));
  });
}

}  // namespace
}  // namespace stretto
