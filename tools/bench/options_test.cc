// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include "tests/support/run_ranks.h"
#include "tools/bench/bench_case.h"
#include "tools/bench/comm_coordinator.h"
#include "tools/bench/options.h"
#include "tools/bench/rank_program.h"

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
  EXPECT_EQ(options.buffers, (std::vector{Buffers::registered, Buffers::private_memory}));
  EXPECT_TRUE(options.pin && options.check);
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
  EXPECT_EQ(options.buffers, std::vector{Buffers::private_memory});
  EXPECT_EQ(options.in_place, false);
  EXPECT_FALSE(options.pin || options.check);
  EXPECT_EQ(options.seconds_per_line, 0.5);
  EXPECT_EQ(options.transport, "tcp");
  EXPECT_TRUE(options.json);
  EXPECT_EQ(options.repeats, 2);
  EXPECT_EQ(options.algorithm, "ring");
  EXPECT_EQ(options.table_terminal, "/dev/tty");
}

TEST(BenchOptions, BuffersAreOfThreeKinds) {
  using enum Buffers;
  const auto kinds_of = [](const std::string& text) { return parsed({"--buffers", text}).buffers; };
  EXPECT_EQ(kinds_of("registered"), std::vector{registered});
  EXPECT_EQ(kinds_of("private"), std::vector{private_memory});
  EXPECT_EQ(kinds_of("huge"), std::vector{huge});
  EXPECT_EQ(kinds_of("both"), (std::vector{registered, private_memory}));
  EXPECT_EQ(kinds_of("all"), (std::vector{registered, private_memory, huge}));
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
      {"--max-bytes", "many"},   {"--seconds-per-line", "nan"},
      {"--explain", "send_recv"}};
  for (const auto& arguments : mistakes) {
    const ParsedOptions result = parse_options(arguments);
    EXPECT_FALSE(result.options.has_value()) << arguments.back();
    EXPECT_EQ(result.status, 2) << arguments.back();
  }
  EXPECT_TRUE(parse_options({"all_gather", "--dtype", "f8_e4m3"}).options.has_value());
  EXPECT_TRUE(parse_options({"--explain", "all"}).options.has_value());
  EXPECT_EQ(parse_options({"--help"}).status, 0);
}

TEST(BenchOptions, WhatWouldNotBeHeededIsRefused) {
  const std::vector<std::vector<std::string>> of_measuring = {
      {"--algorithm", "ring"},     {"--buffers", "private"}, {"--in-place"}, {"--out-of-place"},
      {"--seconds-per-line", "1"}, {"--repeats", "2"},       {"--no-pin"},   {"--no-check"}};
  const std::vector<std::vector<std::string>> of_collectives = {
      {"all_reduce"},        {"--op", "max"}, {"--min-bytes", "64"},
      {"--max-bytes", "4K"}, {"--step", "2"}, {"--dtype", "f16"}};
  const auto is_taken = [](const std::string& mode, std::vector<std::string> arguments) {
    arguments.push_back(mode);
    return parse_options(arguments).options.has_value();
  };
  for (const auto& arguments : of_measuring) {
    EXPECT_FALSE(is_taken("--explain", arguments)) << arguments.front();
    EXPECT_FALSE(is_taken("--compression", arguments)) << arguments.front();
    EXPECT_TRUE(parse_options(arguments).options.has_value()) << arguments.front();
  }
  for (const auto& arguments : of_collectives) {
    EXPECT_TRUE(is_taken("--explain", arguments)) << arguments.front();
    EXPECT_FALSE(is_taken("--compression", arguments)) << arguments.front();
  }
  EXPECT_TRUE(
      is_taken("--compression", {"--explain", "--bytes", "4K", "-n", "2", "--transport", "shm",
                                 "--dtype", "f32", "--json", "--table-terminal", "/dev/tty"}));
}

TEST(Shape, SizesAreThoseOfTheLargerSide) {
  const Shape reduced = shape_of(Collective::all_reduce, 4, 1024, 4);
  EXPECT_EQ(reduced.input, 256U);
  EXPECT_EQ(reduced.output, 256U);
  const Shape scattered = shape_of(Collective::reduce_scatter, 4, 1024, 4);
  EXPECT_EQ(scattered.input, 256U);
  EXPECT_EQ(scattered.output, 64U);
  const Shape gathered = shape_of(Collective::all_gather, 4, 1024, 4);
  EXPECT_EQ(gathered.input, 64U);
  EXPECT_EQ(gathered.output, 256U);
  EXPECT_EQ(gathered.bytes, 1024U);
  // No share is empty, so the shape has more bytes.
  EXPECT_EQ(shape_of(Collective::all_to_all, 4, 8, 4).bytes, 16U);
  EXPECT_EQ(shape_of(Collective::barrier, 4, 8, 4).bytes, 0U);
}

TEST(Shape, BusFactorsAreThoseOfNcclTests) {
  EXPECT_EQ(bus_factor(Collective::all_reduce, 4), 1.5);
  EXPECT_EQ(bus_factor(Collective::all_reduce, 2), 1);
  EXPECT_EQ(bus_factor(Collective::reduce_scatter, 4), 0.75);
  EXPECT_EQ(bus_factor(Collective::all_gather, 4), 0.75);
  EXPECT_EQ(bus_factor(Collective::all_to_all, 4), 0.75);
  EXPECT_EQ(bus_factor(Collective::gather, 4), 0.75);
  EXPECT_EQ(bus_factor(Collective::scatter, 4), 0.75);
  EXPECT_EQ(bus_factor(Collective::broadcast, 4), 1);
  EXPECT_EQ(bus_factor(Collective::reduce, 4), 1);
  EXPECT_EQ(bus_factor(Collective::point_to_point, 2), 1);
  EXPECT_EQ(bus_factor(Collective::barrier, 4), 0);
}

TEST(Pattern, KnowsASumAndWhatIsNone) {
  constexpr int kRanks = 3;
  const Pattern pattern(DType::f32, ReduceOp::sum, kRanks);
  std::vector<float> sum(1000);
  for (int rank = 0; rank < kRanks; ++rank) {
    std::vector<float> input(sum.size());
    pattern.fill(as_output(input), 0, rank, 17);
    EXPECT_TRUE(pattern.is_input(as_input(input), 0, rank, 17));
    EXPECT_FALSE(pattern.is_input(as_input(input), 0, rank, 18));
    EXPECT_FALSE(pattern.is_input(as_input(input), 0, (rank + 1) % kRanks, 17));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += input[i];
  }
  EXPECT_TRUE(pattern.is_reduction(as_input(sum), 0, 17));
  EXPECT_FALSE(pattern.is_reduction(as_input(sum), 0, 16)) << "a result of the call before";
  EXPECT_TRUE(pattern.is_reduction(as_input(std::span(sum).subspan(300)), 300, 17));
  sum.back() += 1;
  EXPECT_FALSE(pattern.is_reduction(as_input(sum), 0, 17));
}

TEST(Pattern, SaysWhatItCannotCheck) {
  EXPECT_TRUE(Pattern(DType::f32, ReduceOp::mean, 4).reduction_is_exact());
  EXPECT_FALSE(Pattern(DType::f32, ReduceOp::mean, 3).reduction_is_exact());
  EXPECT_FALSE(Pattern(DType::f16, ReduceOp::product, 16).reduction_is_exact());
}

BenchOptions quick() {
  BenchOptions options;
  options.seconds_per_line = 0.001;
  return options;
}

TEST(BenchCase, EveryCollectiveComesOutRightAndDamageIsSeen) {
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [](Communicator& comm) {
      BenchOptions options = quick();
      for (int number = 0; number < kCollectiveCount; ++number) {
        const auto operation = static_cast<Collective>(number);
        for (const Buffers buffers :
             {Buffers::registered, Buffers::private_memory, Buffers::huge}) {
          BenchCase bench_case(comm, options, operation, buffers, 1200);
          for (int iteration = 0; iteration < 3; ++iteration) {
            bench_case.prepare();
            bench_case.call();
            EXPECT_TRUE(bench_case.is_right()) << operation_name(operation);
          }
          if (operation == Collective::barrier || comm.rank() != 0) continue;
          bench_case.damage();
          EXPECT_FALSE(bench_case.is_right()) << operation_name(operation);
        }
      }
    });
  }
}

TEST(BenchCase, EveryDtypeAndOperationIsChecked) {
  run_ranks(2, [](Communicator& comm) {
    for (int type = 0; type < kDTypeCount; ++type) {
      for (int number = 0; number < kReduceOpCount; ++number) {
        BenchOptions options = quick();
        options.dtype = static_cast<DType>(type);
        options.op = static_cast<ReduceOp>(number);
        options.in_place = number % 2 == 0;
        if (!supports(options.op, options.dtype)) continue;
        BenchCase bench_case(comm, options, Collective::all_reduce, Buffers::registered, 2048);
        bench_case.prepare();
        bench_case.call();
        EXPECT_TRUE(bench_case.can_check());
        EXPECT_TRUE(bench_case.is_right()) << name(options.dtype) << " " << name(options.op);
      }
    }
  });
}

TEST(CommCoordinator, CountsTheRanksOfEachHost) {
  run_ranks(3, [](Communicator& comm) {
    const bool is_alone = comm.rank() == 1;
    EXPECT_EQ(count_ranks_of(comm, is_alone ? "one" : "other"), is_alone ? 1 : 2);
    EXPECT_EQ(count_ranks_of(comm, ""), 3);
    EXPECT_EQ(RankCoordinator(comm, 1).ranks_of_host(), 3);
  });
}

// The case of a rank that gets other bytes than the others.
class DamagedCase final : public BenchCase {
 public:
  using BenchCase::BenchCase;
  bool is_right() const override {
    damage();
    return BenchCase::is_right();
  }
};

TEST(MeasureLine, OneWrongRankMakesTheLineWrong) {
  run_ranks(2, [](Communicator& comm) {
    const BenchOptions options = quick();
    CommCoordinator meeting(comm);
    BenchCase right(comm, options, Collective::all_reduce, Buffers::registered, 4096);
    const Line good = measure_line(meeting, right, options, false);
    EXPECT_EQ(good.check, Check::ok);
    EXPECT_EQ(good.bytes, 4096U);
    EXPECT_EQ(good.count, 1024U);
    EXPECT_GT(good.time.p50_us, 0);
    EXPECT_GT(good.efficiency().value_or(0), 0);
    const auto check_of = [&](BenchCase& bench_case) {
      return measure_line(meeting, bench_case, options, false).check;
    };
    DamagedCase damaged(comm, options, Collective::all_reduce, Buffers::registered, 4096);
    EXPECT_EQ(comm.rank() == 1 ? check_of(damaged) : check_of(right), Check::wrong);
  });
}

}  // namespace
}  // namespace stretto::bench
