// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Compressed vectors one by one: what their residuals and momenta do can be told.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/base/error.h"
#include "stretto/base/random.h"
#include "stretto/reducer/compressed_reduction.h"
#include "tests/support/run_ranks.h"

namespace stretto {
namespace {

using Floats = std::vector<float>;

TEST(CompressedAllReduce, KeepsResidualsByName) {
  run_ranks(2, [](Communicator& communicator) {
    CompressedAllReduce compressed(communicator,
                                   {.codec = top_k({.density = 0.5}), .min_elements = 1});
    Floats data = {4, 1, 3, 2};
    compressed.run("x", data);
    EXPECT_EQ(data, (Floats{8, 0, 6, 0}));
    data = {0, 0, 0, 0};
    compressed.run("x", data, {.op = ReduceOp::mean});
    EXPECT_EQ(data, (Floats{0, 1, 0, 2}));
    data = {1, 2};
    compressed.run("y", data);
    EXPECT_EQ(data, (Floats{0, 4}));
    EXPECT_EQ(compressed.state("y")->residual("y")[0], 1);
    EXPECT_THROW(compressed.run("x", data), InvalidArgument);
    EXPECT_EQ(compressed.state("z"), nullptr);
  });
}

// Gathered, three messages of four; divided, three quarters of two.
TEST(CompressedAllReduce, PartsAreFewerBytesThanWholesOfManyRanks) {
  std::size_t received[2] = {};
  for (const bool divides : {false, true}) {
    run_ranks(4, [&](Communicator& communicator) {
      CompressedAllReduce compressed(
          communicator,
          {.codec = top_k({.density = 0.05}),
           .exchange = divides ? CompressedExchange::divide : CompressedExchange::gather});
      Random random(static_cast<std::uint64_t>(communicator.rank().value()));
      Floats data(100000);
      for (float& value : data) value = static_cast<float>(random.uniform());
      compressed.run("x", data);
      const std::ptrdiff_t few = std::ranges::count_if(data, [](float sum) { return sum != 0; });
      EXPECT_EQ(few <= 5004, divides) << few;
      if (communicator.rank() == 0) {
        received[divides ? 1 : 0] = compressed.state("x")->last_step().received_bytes;
      }
    });
  }
  EXPECT_LT(received[1], received[0] * 6 / 10);
}

TEST(CompressedAllReduce, AnotherKIsRefusedAndBothAreNamed) {
  run_ranks(2, [](Communicator& communicator) {
    const bool first = communicator.rank() == Rank(0);
    CompressedAllReduce compressed(communicator, {.codec = top_k({.density = first ? 0.1 : 0.2})});
    Floats data(5000, 1.0f);
    try {
      compressed.run("x", data);
      FAIL() << "not refused";
    } catch (const Mismatch& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("version 1: top_k(0.1) from"), std::string::npos) << text;
      EXPECT_NE(text.find("version 1: top_k(0.2) from"), std::string::npos) << text;
      EXPECT_NE(text.find("on rank 1; give all ranks the same options"), std::string::npos) << text;
    }
  });
}

// One rank and a codec that sends every other element: what masked momentum does can be told.
TEST(CompressedAllReduce, MomentumIsAddedBeforeAndBeginsAnewWhereSent) {
  for (const bool masked : {true, false}) {
    run_ranks(1, [&](Communicator& communicator) {
      CompressedAllReduce compressed(communicator, {.codec = top_k({.density = 0.5}),
                                                    .min_elements = 1,
                                                    .momentum = 0.5f,
                                                    .mask_momentum = masked});
      Floats data = {4, 1};
      compressed.run("x", data);
      EXPECT_EQ(data, (Floats{4, 0}));
      data = {0, 1};
      compressed.run("x", data);
      // Of the second element: 1 stayed, and 1 + 0.5 was added to that.
      EXPECT_EQ(data, (Floats{0, 2.5f}));
      data = {0, 0};
      compressed.run("x", data);
      // What was sent has stopped moving, or goes on: 4 / 4 + 4 / 2, and 1.5 / 2.
      EXPECT_EQ(data, masked ? (Floats{0, 0}) : (Floats{3, 0}));
    });
  }
}

TEST(CompressedAllReduce, DenseStepsGoOnWithTheSameMomentum) {
  run_ranks(1, [&](Communicator& communicator) {
    CompressedAllReduce compressed(
        communicator, {.min_elements = 1, .momentum = 0.5f, .compression = Compression::never});
    for (const float expected : {4.0f, 2.0f, 1.0f}) {
      Floats data = {expected == 4 ? 4.0f : 0.0f};
      compressed.run("x", data);
      EXPECT_EQ(data[0], expected);
    }
  });
}

TEST(CompressedAllReduce, ClipsWhatOneRankAdds) {
  run_ranks(4, [](Communicator& communicator) {
    CompressedAllReduce compressed(
        communicator, {.codec = top_k({.density = 1}), .min_elements = 1, .clip_norm = 10});
    Floats data = communicator.rank() == Rank(0) ? Floats{30, 40} : Floats{0.5f, 0};
    compressed.run("x", data);
    EXPECT_FLOAT_EQ(data[0], 3 + 1.5f);
    EXPECT_FLOAT_EQ(data[1], 4);
  });
}

TEST(CompressedAllReduce, MomentumDoesNotKeepNaN) {
  run_ranks(2, [](Communicator& communicator) {
    CompressedAllReduce compressed(
        communicator, {.codec = top_k({.density = 0.5}), .min_elements = 1, .momentum = 0.9f});
    Floats data = {std::numeric_limits<float>::quiet_NaN(), 1};
    compressed.run("x", data);
    EXPECT_TRUE(std::isnan(data[0]));
    for (int step = 0; step < 3; ++step) {
      data = {1, 1};
      compressed.run("x", data);
      for (const float value : data) EXPECT_TRUE(std::isfinite(value));
    }
  });
}

}  // namespace
}  // namespace stretto
