// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <filesystem>
#include <set>
#include <sstream>
#include <string>

#include <nlohmann/json.hpp>

#include "tests/end_to_end/tool.h"
#include "tests/support/expect_contains.h"
#include "tests/support/in_child.h"
#include "tests/support/may_copy_from.h"

namespace stretto {
namespace {

// `stretto bench` as a user runs it: it starts its ranks, measures, checks and reports.

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

TEST(Bench, SharedMemoryThatIsAskedForMustBeThere) {
  for (const Arguments& mode : {Arguments(), Arguments{"--explain"}, Arguments{"--compression"},
                                Arguments{"--compression", "--explain"}}) {
    const Ended ended =
        run(Arguments{"bench", "-n", "2", "--bytes", "8", "--transport", "shm"} + mode,
            {{"STRETTO_TRANSPORT", "tcp"}});
    EXPECT_NE(ended.status, 0) << ended.output;
    expect_contains(ended.errors, "shm: not all ranks share memory");
  }
}

// `stretto bench --explain` as a user runs it, and the cache of links that it reports on.

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
  const auto objects = objects_of(ended.output);
  EXPECT_GE(objects.size(), 9u);
  for (const auto& object : objects) {
    EXPECT_EQ(object.at("ranks"), 2);
    EXPECT_FALSE(object.at("algorithm").get<std::string>().empty());
    EXPECT_FALSE(object.at("algorithm_huge_pages").get<std::string>().empty());
  }
}

// The output tells which way private buffers go with each value of STRETTO_SINGLE_COPY.
TEST(Explain, TellsWhatIsCopiedOnce) {
  const Arguments explain = {"bench",        "--explain", "-n",      "2",
                             "--collective", "broadcast", "--bytes", "4M"};
  const auto output_with = [&](const std::string& wanted) {
    return run(explain, {{"STRETTO_SINGLE_COPY", wanted}}).output;
  };
  const std::string off = output_with("off");
  expect_contains(off, "staged_mapped; direct_mapped if registered\n");
  expect_lacks(off, "copied once");
  // A child may reach its parent's memory if ranks may reach each other's.
  if (exit_code_in_child([] { return may_copy_from(::getppid()) ? 0 : 1; }) != 0) {
    GTEST_SKIP() << "the system does not let processes reach each other's memory";
  }
  expect_contains(output_with("always"), "copied once");
  const std::string automatic = output_with("automatic");
  expect_contains(automatic, "in huge pages, are copied once by the kernel");
  expect_contains(automatic, "direct_mapped if registered or in huge pages\n");
}

TEST(CompressionBench, TellsOfEachCodecWhatItTakesAndSends) {
  const Ended ended = run({"bench", "--compression", "-n", "2", "--bytes", "64K", "--json"});
  EXPECT_EQ(ended.status, 0) << ended.errors;
  std::set<std::string> codecs;
  for (const auto& object : objects_of(ended.output)) {
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
  EXPECT_EQ(codecs.size(), 11u);
  EXPECT_TRUE(codecs.contains("as they are") && codecs.contains("PowerSGD rank 4"));
}

// For few bytes that come from many ranks, latency counts; for many bytes, their number counts.
TEST(CompressionBench, ExplainsHowMessagesTravel) {
  const Ended ended = run({"bench", "--compression", "--explain", "-n", "4", "--transport", "tcp",
                           "--bytes", "8K,16M", "--json"});
  EXPECT_EQ(ended.status, 0) << ended.errors;
  std::set<std::string> chosen;
  for (const auto& object : objects_of(ended.output)) {
    const double bytes = object.at("bytes"), message_bytes = object.at("message_bytes");
    const std::string exchange = object.at("exchange");
    if (message_bytes == 0) {  // Its messages have no fixed length.
      EXPECT_EQ(exchange.starts_with("gathered, and combined in steps after"), bytes > 10000)
          << object;
      continue;
    }
    const double gathered_s = object.at("gathered_s"), divided_s = object.at("divided_s");
    EXPECT_GE(object.at("combined_s").get<double>(), divided_s) << object;
    EXPECT_TRUE(exchange.starts_with(divided_s < gathered_s ? "divided" : "gathered")) << object;
    EXPECT_GT(divided_s, 0);
    if (bytes > 10000) {
      EXPECT_LT(divided_s < gathered_s ? divided_s : gathered_s, object.at("dense_s")) << object;
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
  expect_contains(ended.output, "(-: there is no model of these links)");
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
