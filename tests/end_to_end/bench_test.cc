// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// `stretto bench` from outside: it starts its ranks, measures, checks and tells.

#include <sstream>
#include <string>

#include <nlohmann/json.hpp>

#include "tests/end_to_end/tool.h"

namespace stretto {
namespace {

using namespace testing;  // NOLINT: what tool.h gives to tests.

const Arguments kQuick = {"--seconds-per-line", "0.002"};

std::vector<nlohmann::json> objects_of(const std::string& output) {
  std::vector<nlohmann::json> objects;
  std::istringstream stream(output);
  for (std::string line; std::getline(stream, line);) {
    objects.push_back(nlohmann::json::parse(line));
  }
  return objects;
}

TEST(Bench, TellsProgramsAnObjectALine) {
  const Ended ended = run(Arguments{"bench", "all_reduce", "-n", "2", "--bytes", "8,4K,64K",
                                    "--json", "--repeats", "2"} +
                          kQuick);
  EXPECT_EQ(ended.status, 0) << ended.errors;
  const auto objects = objects_of(ended.output);
  ASSERT_EQ(objects.size(), 12U) << ended.output;
  for (const auto& object : objects) {
    for (const char* key : {"operation", "ranks", "bytes", "dtype", "buffers", "system", "version",
                            "p50_us", "p99_us", "max_us", "regime", "repeat", "algbw_gbps",
                            "busbw_gbps", "efficiency", "algorithm", "check"}) {
      EXPECT_TRUE(object.contains(key)) << key;
    }
    EXPECT_EQ(object.at("operation"), "all_reduce");
    EXPECT_EQ(object.at("ranks"), 2);
    EXPECT_EQ(object.at("check"), "ok");
    EXPECT_GT(object.at("p50_us"), 0);
    EXPECT_LE(object.at("repeat"), 1);
    EXPECT_EQ(object.at("efficiency").is_number(), object.at("bytes") >= 4096);
  }
}

TEST(Bench, EveryCollectiveHasItsRowsAndItsSentence) {
  const Ended ended = run(Arguments{"bench", "all", "-n", "3", "--bytes", "1K"} + kQuick);
  EXPECT_EQ(ended.status, 0) << ended.errors;
  EXPECT_NE(ended.output.find("stretto "), std::string::npos);
  for (const char* name : {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
                           "gather", "scatter", "all_to_all", "barrier", "send_recv"}) {
    EXPECT_NE(ended.output.find(std::string("\n") + name + ": "), std::string::npos) << name;
  }
  EXPECT_EQ(ended.output.find("wrong"), std::string::npos) << ended.output;
}

TEST(Bench, MeasuresWithoutSharedMemory) {
  const Ended ended = run(Arguments{"bench", "all_reduce", "broadcast", "-n", "2", "--bytes", "4K",
                                    "--transport", "tcp", "--json", "--out-of-place"} +
                          kQuick);
  EXPECT_EQ(ended.status, 0) << ended.errors;
  const auto objects = objects_of(ended.output);
  ASSERT_EQ(objects.size(), 4U) << ended.output;
  for (const auto& object : objects) {
    EXPECT_EQ(object.at("transport"), "tcp");
    EXPECT_EQ(object.at("check"), "ok");
  }
  EXPECT_EQ(objects.front().at("in_place"), false);
}

TEST(Bench, JoinsTheJobOfALauncher) {
  const Ended ended = run(Arguments{"run", "-n", "2", "--no-prefix", "--", kToolPath, "bench",
                                    "barrier", "--json", "--no-pin"} +
                          kQuick);
  EXPECT_EQ(ended.status, 0) << ended.errors;
  const auto objects = objects_of(ended.output);
  ASSERT_EQ(objects.size(), 1U) << ended.output;
  EXPECT_EQ(objects.front().at("ranks"), 2);
}

TEST(Bench, AnAlgorithmThatIsNoneEndsTheJob) {
  const Ended ended =
      run(Arguments{"bench", "-n", "2", "--bytes", "8", "--algorithm", "magic"} + kQuick);
  EXPECT_NE(ended.status, 0);
  EXPECT_NE(ended.errors.find("magic"), std::string::npos) << ended.errors;
}

}  // namespace
}  // namespace stretto
