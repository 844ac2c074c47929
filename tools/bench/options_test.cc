// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/options.h"

#include <gtest/gtest.h>

namespace stretto::bench {
namespace {

BenchOptions parsed(const std::vector<std::string>& arguments) {
  const ParsedOptions result = parse_options(arguments);
  EXPECT_TRUE(result.options.has_value());
  return result.options.value_or(BenchOptions());
}

TEST(BenchOptions, SizesReadAsPeopleWriteThem) {
  EXPECT_EQ(parse_bytes("8"), 8U);
  EXPECT_EQ(parse_bytes("64K"), 65536U);
  EXPECT_EQ(parse_bytes("64 KiB"), 65536U);
  EXPECT_EQ(parse_bytes("1.5m"), 1536U * 1024);
  EXPECT_EQ(parse_bytes("2G"), std::size_t{2} << 30);
  EXPECT_EQ(parse_bytes("12B"), 12U);
  for (const char* wrong : {"", "K", "-1", "0", "8x", "8KB", "1e30", "nan"}) {
    EXPECT_EQ(parse_bytes(wrong), std::nullopt) << wrong;
  }
}

TEST(BenchOptions, BytesPrintAsPeopleWriteThem) {
  EXPECT_EQ(format_bytes(8), "8 B");
  EXPECT_EQ(format_bytes(64 * 1024), "64 KiB");
  EXPECT_EQ(format_bytes(1536), "1536 B");
  EXPECT_EQ(format_bytes(std::size_t{3} << 30), "3 GiB");
}

TEST(BenchOptions, WithoutArgumentsAllReduceOfUsualSizes) {
  const BenchOptions options = parsed({});
  EXPECT_EQ(options.operations, std::vector{Collective::all_reduce});
  EXPECT_TRUE(options.registered && options.private_buffers && options.pin && options.check);
  const std::vector<std::size_t> sizes = sizes_of(options);
  EXPECT_EQ(sizes.front(), 8U);
  EXPECT_EQ(sizes[1], 32U);
  EXPECT_EQ(sizes[12], std::size_t{128} << 20);
  EXPECT_EQ(sizes.back(), std::size_t{256} << 20);
}

TEST(BenchOptions, EverythingThatIsSaidArrives) {
  const BenchOptions options = parsed({"broadcast",
                                       "send_recv",
                                       "-n",
                                       "3",
                                       "--bytes",
                                       "4K,8",
                                       "--dtype",
                                       "f16",
                                       "--op",
                                       "max",
                                       "--buffers",
                                       "private",
                                       "--transport",
                                       "tcp",
                                       "--out-of-place",
                                       "--no-pin",
                                       "--no-check",
                                       "--json",
                                       "--repeats",
                                       "2",
                                       "--seconds-per-line",
                                       "0.5",
                                       "--algorithm",
                                       "ring",
                                       "--table-terminal",
                                       "/dev/tty"});
  EXPECT_EQ(options.operations, (std::vector{Collective::broadcast, Collective::point_to_point}));
  EXPECT_EQ(sizes_of(options), (std::vector<std::size_t>{8, 4096}));
  EXPECT_EQ(options.ranks, 3);
  EXPECT_EQ(options.dtype, DType::f16);
  EXPECT_EQ(options.op, ReduceOp::max);
  EXPECT_TRUE(options.private_buffers && !options.registered && !options.huge_pages);
  EXPECT_EQ(options.in_place, false);
  EXPECT_FALSE(options.pin || options.check);
  EXPECT_EQ(options.seconds_per_line, 0.5);
}

TEST(BenchOptions, BuffersAreOfThreeKinds) {
  const auto kinds_of = [](const std::string& buffers) {
    const BenchOptions options = parsed({"--buffers", buffers});
    return std::string(options.registered ? "r" : "") + (options.private_buffers ? "p" : "") +
           (options.huge_pages ? "h" : "");
  };
  EXPECT_EQ(kinds_of("registered"), "r");
  EXPECT_EQ(kinds_of("private"), "p");
  EXPECT_EQ(kinds_of("huge"), "h");
  EXPECT_EQ(kinds_of("both"), "rp");
  EXPECT_EQ(kinds_of("all"), "rph");
}

TEST(BenchOptions, AllIsEveryCollectiveOnce) {
  EXPECT_EQ(parsed({"barrier", "all"}).operations.size(), 10U);
  EXPECT_EQ(parsed({"reduce", "reduce"}).operations.size(), 1U);
  EXPECT_EQ(parsed({"--explain"}).operations.size(), 9U);
  EXPECT_EQ(parsed({"--bytes", "8,64", "all"}).operations.size(), 10U);
}

TEST(BenchOptions, MistakesAreExplained) {
  const std::vector<std::vector<std::string>> mistakes = {
      {"all_reduced"},           {"--dtype", "f33"},
      {"--op", "add"},           {"--bytes", "8,x"},
      {"--buffers", "mine"},     {"--min-bytes", "2K", "--max-bytes", "1K"},
      {"--dtype", "f8_e4m3"},    {"--in-place", "--out-of-place"},
      {"--transport", "ether"},  {"--step", "1"},
      {"--check", "--no-check"}, {"--max-bytes", "many"}};
  for (const auto& arguments : mistakes) {
    const ParsedOptions result = parse_options(arguments);
    EXPECT_FALSE(result.options.has_value()) << arguments.back();
    EXPECT_EQ(result.status, 2) << arguments.back();
  }
  EXPECT_TRUE(parse_options({"all_gather", "--dtype", "f8_e4m3"}).options.has_value());
  EXPECT_EQ(parse_options({"--help"}).status, 0);
}

}  // namespace
}  // namespace stretto::bench
