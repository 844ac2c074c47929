// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/expect_contains.h"
#include "tools/commands.h"

namespace stretto::tools {
namespace {

TEST(Bench, SaysWhatItCannotDo) {
  EXPECT_EQ(bench_command({"--explain", "--collective", "all_reduced"}), 2);
  EXPECT_EQ(bench_command({"--bytes", "many"}), 2);
  EXPECT_EQ(bench_command({"--help"}), 0);
}

// Returns what the command prints to standard output.
std::string output_of(const std::vector<std::string>& arguments, int expected_status) {
  ::testing::internal::CaptureStdout();
  const int status = plan_command(arguments);
  std::fflush(stdout);
  const std::string output = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(status, expected_status);
  return output;
}

// Expects that arguments are refused, with `words` on standard error.
void expect_refused(const std::vector<std::string>& arguments, std::string_view words,
                    int line = __builtin_LINE()) {
  ::testing::internal::CaptureStderr();
  (void)output_of(arguments, 2);
  std::fflush(stderr);
  expect_contains(::testing::internal::GetCapturedStderr(), words, __FILE__, line);
}

TEST(Plan, ProvesAndPricesARing) {
  const auto object = nlohmann::json::parse(
      output_of({"all_reduce", "ring", "-n", "4", "--bytes", "4096", "--json"}, 0));
  EXPECT_TRUE(object["proved"]);
  EXPECT_EQ(object["steps"], 6);
  EXPECT_EQ(object["sent_bytes_max"], 6144);  // 2(n-1)/n of 4096.
  EXPECT_EQ(object["order"], "fixed");
}

TEST(Plan, PricesEveryAlgorithmForAHundredThousandRanks) {
  const auto prices = [](const std::vector<std::string>& besides) {
    std::vector<std::string> words = {"all_reduce", "-n", "100000", "--json"};
    words.insert(words.end(), besides.begin(), besides.end());
    return nlohmann::json::parse(output_of(words, 0))["prices"];
  };
  // 2(n-1)/n of 64 MiB at 12.5 GB/s take 10.7 ms.
  const std::vector<std::string> large = {"--bytes", "67108864", "--gbit", "100"};
  const auto flat = prices(large);
  ASSERT_GT(flat.size(), 2u);
  EXPECT_GT(flat[0]["modelled_seconds"], 0.0107);
  EXPECT_EQ(prices({"--bytes", "8"})[0]["algorithm"], "recursive_doubling");
  // A ring enters and leaves each host of eight ranks once: seven of eight steps are inside.
  std::vector<std::string> on_hosts = large;
  on_hosts.insert(on_hosts.end(), {"--per-host", "8", "--local-gbit", "1000"});
  EXPECT_EQ(prices(on_hosts).back()["algorithm"], "ring");
  EXPECT_LT(prices(on_hosts).back()["modelled_seconds"], flat.back()["modelled_seconds"]);
  // Hosts of seven ranks split the canonical tree in many ways.
  expect_contains(output_of({"all_reduce", "-n", "300000", "--per-host", "7"}, 0), "two_level");
  expect_contains(output_of({"barrier", "-n", "3"}, 0), "barrier by 3 ranks");
  expect_refused({"all_reduce", "ring", "-n", "257"}, "a schedule is made for up to 256 ranks");
  expect_refused({"all_reduce", "--hosts", "2+2", "--per-host", "2"},
                 "--hosts and --per-host say the same: give one");
  expect_refused({"magic"}, "which collective, and by which algorithm?");
}

// In such a job, some ranks share memory, and some do not.
TEST(Plan, PricesMappedMemoryOnlyWhereAJobUsesItBesideMessages) {
  const auto names_mapped = [](const std::vector<std::string>& where) {
    std::vector<std::string> words = {"all_reduce"};
    words.insert(words.end(), where.begin(), where.end());
    return output_of(words, 0).find("two_level_mapped") != std::string::npos;
  };
  EXPECT_TRUE(names_mapped({"--hosts", "2+1"}));
  EXPECT_TRUE(names_mapped({"-n", "8", "--per-host", "4"}));
  EXPECT_FALSE(names_mapped({"-n", "8"}));
  EXPECT_FALSE(names_mapped({"--hosts", "1+1+1"}));
  EXPECT_FALSE(names_mapped({"-n", "8", "--per-host", "8"}));
  expect_contains(output_of({"all_reduce", "--hosts", "4"}, 0),
                  "where they do not share memory, as ranks of one host do");
}

TEST(Plan, PrintsOneRank) {
  const std::string text = output_of({"broadcast", "binomial_tree", "-n", "4", "--rank", "3"}, 0);
  expect_contains(text, "recv");
  expect_contains(text, "every output holds what it must");
}

TEST(Plan, ListsWhatThereIs) {
  const std::string text = output_of({"--list"}, 0);
  expect_contains(text, "staged_mapped");
}

TEST(Plan, TakesARoot) {
  const std::string text =
      output_of({"gather", "direct", "-n", "3", "--root", "2", "--bytes", "300"}, 0);
  expect_contains(text, "gather by direct to 2 on 3 ranks");
  expect_contains(text, "0>2 c0   1>2 c1");
  expect_contains(text, "100 bytes by the busiest rank");
}

TEST(Plan, CountsTheRanksOfHosts) {
  const auto object =
      nlohmann::json::parse(output_of({"all_gather", "ring", "--hosts", "3+5+1", "--json"}, 0));
  EXPECT_EQ(object["ranks"], 9);
  EXPECT_EQ(object["hosts"], "3+5+1");
  EXPECT_EQ(nlohmann::json::parse(output_of(
                {"all_gather", "ring", "--per-host", "4", "-n", "10", "--json"}, 0))["hosts"],
            "4+4+2");
  const auto slow_inside = nlohmann::json::parse(
      output_of({"all_gather", "ring", "--hosts", "3+5+1", "--local-gbit", "0.01", "--json"}, 0));
  EXPECT_GT(slow_inside["modelled_seconds"], object["modelled_seconds"]);
  (void)output_of({"all_gather", "ring", "--hosts", "3+5+1", "-n", "9"}, 0);
  expect_refused({"all_gather", "ring", "--hosts", "3+5+1", "-n", "8"},
                 "--hosts has 9 ranks, and --ranks says 8");
  for (const char* hosts : {"3+", "+3", "3++1", "three", "3+0", "-1", "3,1", "257"}) {
    expect_refused({"all_gather", "ring", fmt::format("--hosts={}", hosts)},
                   fmt::format("--hosts takes ranks per host such as 3+5+1, not \"{}\"", hosts));
  }
  expect_refused({"all_gather", "ring", "--hosts=200+57"}, "--hosts has more than 256 ranks");
}

TEST(Plan, ShowsThePipelinesOfStreams) {
  const std::string text = output_of({"--streams", "singa", "--slots", "1", "--slices", "3"}, 0);
  expect_contains(text, "send, receive  fill, copy_back of slice -1");
  expect_contains(text,
                  "c1              0 . 1 . 2\n"
                  "s               . 0 . 1 . 2\n"
                  "c2              . . 0 . 1 . 2\n");
  expect_contains(output_of({"--streams", "fairring"}, 0), "5 streams");
  expect_refused({"--streams", "ring"}, "there is no pipeline \"ring\", but: staged");
  expect_refused({"--streams", "staged", "--json"}, "--list and --streams print no JSON");
}

TEST(Plan, SaysWhatIsWrong) {
  expect_refused({"all_reduce", "magic"}, "there is no \"all_reduce magic\"");
  expect_refused({"all_reduce", "ring", "-n", "4", "--rank", "4"},
                 "--rank and --root must be below 4");
  expect_refused({"all_reduce", "ring", "-n", "4", "--rank", "-7"},
                 "--rank: -7 is no whole number from 0 to 255");
  expect_refused({"all_reduce", "ring", "-n", "0"}, "--ranks: 0 is no whole number from 1 to");
  expect_refused({"--list", "--json"}, "--list and --streams print no JSON");
  for (const char* option : {"--gbit", "--latency-us", "--local-gbit", "--local-latency-us"}) {
    expect_refused({"all_reduce", option, "nan"}, fmt::format("{}: nan is no number of", option));
  }
  // The second is 1 where 64 bits wrap around; the last is 2^40 + 1.
  for (const char* bytes : {"-1", "-18446744073709551615", "1099511627777"}) {
    expect_refused({"all_reduce", "ring", "--bytes", bytes},
                   fmt::format("--bytes: {} is no whole number from 0 to", bytes));
  }
  (void)output_of({"all_reduce", "ring", "--bytes", "0"}, 0);
}

TEST(Plan, ZerosBeforeANumberDoNotMakeItOctal) {
  const auto ranks = [](const std::string& text) {
    return nlohmann::json::parse(output_of({"barrier", "-n", text, "--json"}, 0))["ranks"];
  };
  EXPECT_EQ(ranks("010"), 10);
  EXPECT_EQ(ranks("08"), 8);
  for (const char* text : {"0x10", "8 ", "1e1", ""}) {
    (void)output_of({"barrier", "-n", text}, 2);
  }
}

}  // namespace
}  // namespace stretto::tools
