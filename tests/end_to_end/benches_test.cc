// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <filesystem>
#include <sstream>
#include <string>

#include <nlohmann/json.hpp>

#include "tests/end_to_end/tool.h"
#include "tests/support/expect_contains.h"

namespace stretto {
namespace {

// `stretto bench` from outside: it starts its ranks, measures, checks and tells.

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
  expect_contains(ended.output, "stretto ");
  for (const char* name : {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
                           "gather", "scatter", "all_to_all", "barrier", "send_recv"}) {
    expect_contains(ended.output, std::string("\n") + name + ": ");
  }
  expect_lacks(ended.output, "wrong");
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
  expect_contains(ended.errors, "magic");
}

// `stretto bench --explain` from outside, and the cache of links that it tells of.

TEST(Explain, MeasuresTheLinksOnceAndThenRemembersThem) {
  const TemporaryFolder outside;
  const std::string folder = outside / "cache";
  const Variables tcp = {{"STRETTO_TRANSPORT", "tcp"}, {"STRETTO_LINK_CACHE", folder}};
  const Arguments explain = {"bench", "--explain", "-n", "3", "--collective", "all_reduce"};
  for (const bool first : {true, false}) {
    const Ended ended = run(explain, tcp);
    EXPECT_EQ(ended.status, 0) << ended.errors;
    const std::string& text = ended.output;
    expect_contains(text, "inside a host");
    EXPECT_EQ(text.find("measured just now") != std::string::npos, first) << text;
    expect_contains(text, "predicted at");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  }
}

TEST(Explain, TellsProgramsAnObjectALine) {
  const Ended ended = run({"bench", "--explain", "-n", "2", "--json"});
  EXPECT_EQ(ended.status, 0) << ended.errors;
  std::istringstream stream(ended.output);
  int lines = 0;
  for (std::string line; std::getline(stream, line); ++lines) {
    const auto object = nlohmann::json::parse(line);
    EXPECT_EQ(object.at("ranks"), 2);
    EXPECT_FALSE(object.at("algorithm").get<std::string>().empty());
    EXPECT_FALSE(object.at("algorithm_huge_pages").get<std::string>().empty());
  }
  EXPECT_GE(lines, 9);
}

// Which way private buffers go, as it is asked for.
TEST(Explain, TellsWhatIsCopiedOnce) {
  const Arguments explain = {"bench",        "--explain", "-n",      "2",
                             "--collective", "broadcast", "--bytes", "4M"};
  const auto output_with = [&](const std::string& wanted) {
    return run(explain, {{"STRETTO_SINGLE_COPY", wanted}}).output;
  };
  const std::string off = output_with("off");
  expect_contains(off, "staged_mapped; direct_mapped if registered\n");
  expect_lacks(off, "copied once");
  const std::string always = output_with("always");
  if (always.find("copied once") == std::string::npos) {
    GTEST_SKIP() << "the system does not let processes reach each other's memory";
  }
  const std::string automatic = output_with("automatic");
  expect_contains(automatic, "in huge pages, are copied once by the kernel");
  expect_contains(automatic, "direct_mapped if registered or in huge pages\n");
}

}  // namespace
}  // namespace stretto
