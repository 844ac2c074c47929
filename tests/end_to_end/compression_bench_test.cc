// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// `stretto bench --compression` from outside.

#include <set>
#include <sstream>
#include <string>

#include <nlohmann/json.hpp>

#include "tests/end_to_end/tool.h"
#include "tests/support/expect_contains.h"

namespace stretto {
namespace {

using namespace testing;  // NOLINT: what tool.h gives to tests.

TEST(CompressionBench, TellsOfEachCodecWhatItTakesAndSends) {
  const Ended ended = run({"bench", "--compression", "-n", "2", "--bytes", "64K", "--json"});
  EXPECT_EQ(ended.status, 0) << ended.errors;
  std::istringstream stream(ended.output);
  std::set<std::string> codecs;
  for (std::string line; std::getline(stream, line);) {
    const auto object = nlohmann::json::parse(line);
    codecs.insert(object.at("codec"));
    EXPECT_EQ(object.at("ranks"), 2);
    EXPECT_GT(object.at("step_s").get<double>(), 0);
    EXPECT_GE(object.at("pairs"), 6);
    const double speed_up = object.at("speed_up");
    EXPECT_GE(speed_up, object.at("speed_up_low").get<double>());
    EXPECT_LE(speed_up, object.at("speed_up_high").get<double>());
    if (object.at("codec") == "as they are") {
      EXPECT_EQ(speed_up, 1);
    }
    if (object.at("codec") == "top_k(0.01)") {
      EXPECT_LT(object.at("share").get<double>(), 0.02);
      EXPECT_GT(object.at("pays_below_bits_per_s").get<double>(), 0);
    }
  }
  EXPECT_EQ(codecs.size(), 12u);
  EXPECT_TRUE(codecs.contains("as they are") && codecs.contains("PowerSGD rank 4"));
}

// Of few bytes that come from many ranks it is latency that counts, of many their number.
TEST(CompressionBench, ExplainsHowMessagesTravel) {
  const Ended ended = run({"bench", "--compression", "--explain", "-n", "4", "--transport", "tcp",
                           "--bytes", "8K,16M", "--json"});
  EXPECT_EQ(ended.status, 0) << ended.errors;
  std::istringstream stream(ended.output);
  std::set<std::string> chosen;
  for (std::string line; std::getline(stream, line);) {
    const auto object = nlohmann::json::parse(line);
    const double bytes = object.at("bytes"), message_bytes = object.at("message_bytes");
    const std::string exchange = object.at("exchange");
    if (message_bytes == 0) {  // They have no fixed length.
      EXPECT_EQ(exchange.starts_with("gathered, and combined in steps after"), bytes > 10000)
          << line;
      continue;
    }
    const double gathered_s = object.at("gathered_s"), divided_s = object.at("divided_s");
    EXPECT_GE(object.at("combined_s").get<double>(), divided_s) << line;
    EXPECT_TRUE(exchange.starts_with(divided_s < gathered_s ? "divided" : "gathered")) << line;
    EXPECT_GT(divided_s, 0);
    if (bytes > 10000) {
      EXPECT_LT(divided_s < gathered_s ? divided_s : gathered_s, object.at("dense_s")) << line;
    }
    if (object.at("codec") == "f16" && bytes > 10000) {
      EXPECT_EQ(message_bytes, bytes / 2 + 40);
    }
    chosen.insert(exchange.substr(0, exchange.find(':')));
  }
  EXPECT_EQ(chosen, (std::set<std::string>{"divided", "gathered"})) << ended.output;
}

TEST(CompressionBench, ExplainsInATable) {
  const Ended ended = run({"bench", "--compression", "--explain", "-n", "2", "--bytes", "64K"});
  EXPECT_EQ(ended.status, 0) << ended.errors;
  expect_contains(ended.output, "gradients of 64 KiB, predicted ms");
  expect_contains(ended.output, "top_k(0.01), bf16 values");
}

TEST(CompressionBench, PrintsATable) {
  const Ended ended = run({"bench", "--compression", "-n", "2", "--bytes", "64K"});
  EXPECT_EQ(ended.status, 0) << ended.errors;
  expect_contains(ended.output, "gradients of 64 KiB: the all_reduce brings each rank");
  expect_contains(ended.output, "top_k(0.01), bf16 values");
  expect_contains(ended.output, "1.00 times as fast (1.00 to 1.00)\n");
  expect_contains(ended.output, "messages are gathered: there is no model of these links");
}

}  // namespace
}  // namespace stretto
