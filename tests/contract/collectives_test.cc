// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Every collective by every algorithm against a serial oracle: 1 to 17 ranks, by messages and on
// mapped memory, private and registered buffers, in and out of place. One thread drives all ranks,
// so that seventeen of them need no seventeen cores.

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "stretto/job/threads.h"
#include "stretto/schedule/algorithms.h"
#include "tests/contract/world_ranks.h"
#include "tests/support/algorithms_for.h"
#include "tests/support/on_threads.h"
#include "tests/support/problem.h"
#include "tests/support/thorough.h"

namespace stretto::testing {
namespace {

constexpr std::array kCollectives = {Collective::all_reduce,     Collective::reduce,
                                     Collective::reduce_scatter, Collective::all_gather,
                                     Collective::gather,         Collective::scatter,
                                     Collective::broadcast,      Collective::all_to_all};

// The names of the algorithms of a collective, and "" for the algorithm that is chosen.
std::vector<std::string> algorithms_of(Collective collective, schedule::Access access) {
  std::vector<std::string> names = {""};
  for (const schedule::Algorithm* algorithm : algorithms_for(collective, access)) {
    names.emplace_back(algorithm->name);
  }
  return names;
}

bool needs_equal_shares(const Problem& problem) {
  for (const schedule::Algorithm& algorithm : schedule::algorithms()) {
    if (algorithm.collective == problem.collective && algorithm.name == problem.algorithm) {
      return algorithm.equal_chunks;
    }
  }
  return false;
}

// With more than three ranks, the tests try the types of gradients and one in eleven of the others;
// which ones, depends on the number of ranks. What is done with a type does not depend on how many
// ranks do it.
constexpr int kTypeStep = 11;
constexpr int kRanksOfEveryType = 3;

// AddressSanitizer checks every access, which makes everything ten times as slow: with it, fewer
// numbers of ranks and fewer types are tried.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kIsSlow = true;
bool is_tried(int ranks) { return ranks <= 4 || ranks == 7 || ranks == 13; }
#else
constexpr bool kIsSlow = false;
bool is_tried(int) { return true; }
#endif

// The types and operations that are worth trying with a collective. Where it only moves elements,
// their size is all that counts.
std::vector<std::pair<DType, ReduceOp>> types_of(Collective collective, int ranks, bool every) {
  if (!reduces(collective)) {
    return {{DType::f8_e4m3, ReduceOp::sum},
            {DType::bf16, ReduceOp::sum},
            {DType::f64, ReduceOp::sum},
            {DType::c128, ReduceOp::sum}};
  }
  std::vector<std::pair<DType, ReduceOp>> types;
  int number = 0;
  for (const auto& [dtype, op] : reductions()) {
    const bool is_of_gradients = (dtype == DType::f32 || dtype == DType::bf16) &&
                                 (op == ReduceOp::sum || op == ReduceOp::mean);
    const bool is_next = number++ % kTypeStep == ranks % kTypeStep;
    if (every || is_of_gradients || is_next) types.emplace_back(dtype, op);
  }
  return types;
}

// Counts that divide badly among the ranks or, where there are shares, equal and unequal shares.
std::vector<Problem> sizes_of(const Problem& problem) {
  const auto p = static_cast<std::size_t>(problem.ranks);
  std::vector<Problem> problems;
  if (!has_shares(problem.collective)) {
    for (const std::size_t count : std::set<std::size_t>{0, 1, p - 1, p, p + 1, 97}) {
      problems.push_back(problem);
      problems.back().count = count;
    }
    return problems;
  }
  for (const std::size_t share : {0, 1, 13}) {
    problems.push_back(with_equal_shares(problem, share));
  }
  if (needs_equal_shares(problem)) return problems;
  problems.push_back(with_equal_shares(problem, 0));
  auto& shares = problems.back().shares;
  for (std::size_t i = 0; i < shares.size(); ++i) shares[i] = i * 5 % 7;
  return problems;
}

using Ranks = std::vector<std::unique_ptr<Communicator>>;

// The tests of ranks of all kinds below.
class CollectivesOfAny : public ::testing::Test {
 protected:
  virtual int size() const = 0;
  virtual Ranks make_ranks(std::size_t segment_bytes) const = 0;
  // The algorithms that are worth trying on these ranks.
  virtual std::vector<std::string> algorithms(Collective collective) const = 0;
  virtual bool tries_every_type() const {
    return !kIsSlow && (size() <= kRanksOfEveryType || is_thorough());
  }
  virtual bool registered() const { return false; }
  virtual std::vector<Rank> roots() const {
    std::vector<Rank> all;
    for (int root = 0; root < size(); ++root) all.push_back(root);
    return all;
  }

  void expect_the_serial_oracle() const {
    const Ranks ranks = make_ranks(0);
    for (const Collective collective : kCollectives) {
      for (const std::string& algorithm : algorithms(collective)) {
        for (const auto& [dtype, op] : types_of(collective, size(), tries_every_type())) {
          for (const Problem& problem : sizes_of({.collective = collective,
                                        .dtype = dtype,
                                        .op = op,
                                        .ranks = size(),
                                        .algorithm = algorithm,
                                        .registered = registered()})) {
            ASSERT_EQ(try_on_all(ranks, problem), "");
          }
        }
      }
    }
  }

  void expect_it_in_place_and_from_every_root() const {
    const Ranks ranks = make_ranks(0);
    for (const Collective collective : kCollectives) {
      for (const std::string& algorithm : algorithms(collective)) {
        for (const Rank root : has_root(collective) ? roots() : std::vector<Rank>{0}) {
          for (const bool in_place : {false, true}) {
            for (const Problem& problem : sizes_of({.collective = collective,
                                          .dtype = DType::f16,
                                          .ranks = size(),
                                          .root = root,
                                          .algorithm = algorithm,
                                          .registered = registered(),
                                          .in_place = in_place})) {
              ASSERT_EQ(try_on_all(ranks, problem), "");
            }
          }
        }
      }
    }
  }

  void expect_it_by_any_segments() const {
    for (const std::size_t segment_bytes : {64, 200, 4096}) {
      const Ranks ranks = make_ranks(segment_bytes);
      for (const Collective collective : kCollectives) {
        for (const std::string& algorithm : algorithms(collective)) {
          Problem problem{.collective = collective,
                          .dtype = DType::bf16,
                          .ranks = size(),
                          .root = size() / 2,
                          .count = 1009,
                          .algorithm = algorithm,
                          .registered = registered()};
          if (has_shares(collective)) problem = with_equal_shares(problem, 211);
          ASSERT_EQ(try_on_all(ranks, problem), "");
          if (!has_shares(collective) || needs_equal_shares(problem)) continue;
          for (std::size_t i = 0; i < problem.shares.size(); ++i) problem.shares[i] = i * 389 % 997;
          ASSERT_EQ(try_on_all(ranks, problem), "");
        }
      }
    }
  }
};

struct Case {
  int ranks;
  bool shared_memory = false;
  bool registered = false;
  bool single_copy = false;
};

class Collectives : public CollectivesOfAny, public ::testing::WithParamInterface<Case> {
 protected:
  int size() const override { return GetParam().ranks; }
  bool registered() const override { return GetParam().registered; }
  Ranks make_ranks(std::size_t segment_bytes) const override {
    return make_thread_ranks(
        {.size = size(),
         .shared_memory = GetParam().shared_memory,
         .single_copy = GetParam().single_copy ? SingleCopy::always : SingleCopy::off,
         .segment_bytes = segment_bytes});
  }
  // With single copy, only direct_mapped works on callers' buffers; without it, direct_mapped needs
  // registered ones.
  std::vector<std::string> algorithms(Collective collective) const override {
    if (GetParam().single_copy) return {"", "direct_mapped"};
    const bool mapped = GetParam().shared_memory;
    auto names =
        algorithms_of(collective, mapped ? schedule::Access::mapped : schedule::Access::messages);
    if (!registered()) std::erase(names, "direct_mapped");
    return names;
  }
  std::vector<Rank> roots() const override {
    return size() > 5 ? std::vector<Rank>{0, size() / 2, size() - 1} : CollectivesOfAny::roots();
  }
};

TEST_P(Collectives, EqualTheSerialOracle) { expect_the_serial_oracle(); }

TEST_P(Collectives, InPlaceAndFromEveryRoot) { expect_it_in_place_and_from_every_root(); }

// More ranks would not cut segments in any other way.
constexpr int kRanksOfSegments = 9;
class SegmentedCollectives : public Collectives {};
TEST_P(SegmentedCollectives, AnySegmentsGiveTheSameBits) { expect_it_by_any_segments(); }

// Types of several sizes and kinds of arithmetic, for buffers that are longer than a segment.
std::vector<std::pair<DType, ReduceOp>> long_types_of(Collective collective, int ranks) {
  std::vector<std::pair<DType, ReduceOp>> types = {{DType::bf16, ReduceOp::sum}};
  if (!reduces(collective) || ranks > 3 || kIsSlow) return types;
  types.emplace_back(DType::f32, ReduceOp::mean);
  types.emplace_back(DType::i64, ReduceOp::max);
  types.emplace_back(DType::c64, ReduceOp::sum);
  types.emplace_back(DType::u8, ReduceOp::bit_xor);
  return types;
}

// With more ranks, the segments would be the same.
constexpr int kRanksOfLong = 5;
class LongCollectives : public Collectives {};
TEST_P(LongCollectives, LargerThanASegment) {
  const Ranks ranks = make_ranks(0);
  for (const Collective collective : kCollectives) {
    for (const std::string& algorithm : algorithms(collective)) {
      for (const auto& [dtype, op] : long_types_of(collective, size())) {
        const std::size_t elements = 1400002 / size_bytes(dtype);
        Problem problem{.collective = collective,
                        .dtype = dtype,
                        .op = op,
                        .ranks = size(),
                        .count = elements,
                        .algorithm = algorithm,
                        .registered = registered()};
        if (has_shares(collective)) problem = with_equal_shares(problem, elements * 3 / 7);
        ASSERT_EQ(try_on_all(ranks, problem), "");
      }
    }
  }
}

TEST_P(Collectives, BarriersByEveryAlgorithm) {
  const Ranks ranks = make_ranks(0);
  for (const std::string& algorithm : algorithms(Collective::barrier)) {
    const Problem problem{
        .collective = Collective::barrier, .ranks = size(), .algorithm = algorithm};
    ASSERT_EQ(try_on_all(ranks, problem), "");
  }
}

std::vector<Case> cases_up_to(int ranks_max) {
  std::vector<Case> list;
  for (int ranks = 1; ranks <= ranks_max; ++ranks) {
    if (!is_tried(ranks)) continue;
    list.push_back({.ranks = ranks});
    list.push_back({.ranks = ranks, .shared_memory = true});
    // This case is by far the slowest: each region that is freed is looked for in all that is kept.
    if (ranks <= 9 || ranks == 13 || ranks >= 16) {
      list.push_back({.ranks = ranks, .shared_memory = true, .registered = true});
    }
    list.push_back({.ranks = ranks, .shared_memory = true, .single_copy = true});
  }
  return list;
}

std::string case_name(const ::testing::TestParamInfo<Case>& tested) {
  const Case& c = tested.param;
  return "ranks" + std::to_string(c.ranks) + (c.shared_memory ? "_mapped" : "_messages") +
         (c.registered ? "_registered" : "") + (c.single_copy ? "_single_copy" : "");
}

INSTANTIATE_TEST_SUITE_P(, Collectives, ::testing::ValuesIn(cases_up_to(17)), case_name);
INSTANTIATE_TEST_SUITE_P(, SegmentedCollectives, ::testing::ValuesIn(cases_up_to(kRanksOfSegments)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(, LongCollectives, ::testing::ValuesIn(cases_up_to(kRanksOfLong)),
                         case_name);

// Ranks on several hosts, with and without memory that the ranks of a host share. Two-level
// algorithms, and the choice of an algorithm, depend on the hosts.
using HostsCase = std::tuple<std::vector<std::int32_t>, bool>;
class CollectivesOnHosts : public CollectivesOfAny,
                           public ::testing::WithParamInterface<HostsCase> {
 protected:
  int size() const override { return static_cast<int>(std::get<0>(GetParam()).size()); }
  // No smaller group tests the algorithms for hosts, so these try every type.
  bool tries_every_type() const override { return !kIsSlow; }
  bool shares_memory() const { return std::get<1>(GetParam()); }
  Ranks make_ranks(std::size_t segment_bytes) const override {
    return make_thread_ranks({.size = size(),
                              .shared_memory = shares_memory(),
                              .hosts = std::get<0>(GetParam()),
                              .segment_bytes = segment_bytes});
  }
  std::vector<std::string> algorithms(Collective collective) const override {
    std::vector<std::string> names = {""};
    for (const schedule::Algorithm& algorithm : schedule::algorithms()) {
      const bool is_meant = algorithm.access == schedule::Access::both
                                ? shares_memory()
                                : !shares_memory() && algorithm.name == "two_level";
      if (algorithm.collective == collective && is_meant) names.emplace_back(algorithm.name);
    }
    return names;
  }
};

TEST_P(CollectivesOnHosts, EqualTheSerialOracle) { expect_the_serial_oracle(); }

TEST_P(CollectivesOnHosts, InPlaceAndFromEveryRoot) { expect_it_in_place_and_from_every_root(); }

TEST_P(CollectivesOnHosts, AnySegmentsGiveTheSameBits) { expect_it_by_any_segments(); }

// Operations of different kinds follow each other through the same lanes, some before others end.
TEST_P(CollectivesOnHosts, ManyMayBeUnderWay) {
  constexpr std::size_t kOperations = 40;
  constexpr std::size_t kCount = 301;
  const auto ranks = make_ranks(256);
  const auto size = static_cast<std::size_t>(this->size());
  on_threads(size, [&](std::size_t rank) {
    std::vector<std::vector<float>> sums(kOperations), shares(kOperations), all(kOperations);
    std::vector<Work> works;
    for (std::size_t i = 0; i < kOperations; ++i) {
      sums[i].assign(kCount, static_cast<float>(i + rank));
      shares[i].assign(kCount, static_cast<float>(i * rank));
      all[i].resize(kCount * size);
      works.push_back(ranks[rank]->all_reduce(sums[i]));
      works.push_back(ranks[rank]->all_gather(shares[i], all[i]));
    }
    for (Work& work : works) work.wait();
    for (std::size_t i = 0; i < kOperations; ++i) {
      const std::vector<float> expected(kCount,
                                        static_cast<float>(i * size + size * (size - 1) / 2));
      EXPECT_EQ(sums[i], expected) << "operation " << i << " on rank " << rank;
      for (std::size_t j = 0; j < all[i].size(); ++j) {
        ASSERT_EQ(all[i][j], static_cast<float>(i * (j / kCount))) << i << " on rank " << rank;
      }
    }
  });
}

std::string hosts_name(const ::testing::TestParamInfo<HostsCase>& tested) {
  std::string name = "hosts";
  for (const std::int32_t host : std::get<0>(tested.param)) name += std::to_string(host);
  return name + (std::get<1>(tested.param) ? "_mapped" : "_messages");
}

INSTANTIATE_TEST_SUITE_P(
    , CollectivesOnHosts,
    ::testing::Combine(::testing::Values(std::vector<std::int32_t>{0, 0, 1, 1},
                                         std::vector<std::int32_t>{0, 0, 0, 1, 1, 1, 1, 1, 2},
                                         std::vector<std::int32_t>{0, 1, 1, 1},
                                         std::vector<std::int32_t>{0, 1, 0, 1, 0},
                                         std::vector<std::int32_t>{0, 1, 2, 0, 1, 2},
                                         std::vector<std::int32_t>{4, 4, 4, 4, 2}),
                       ::testing::Bool()),
    hosts_name);

// Ranks that share no memory, connected in every way that there is: sockets, encrypted sockets,
// several sockets per pair, and the engines of other libraries where they are built.
using WorldCase = std::tuple<transport::WorldKind, int>;
class CollectivesByWay : public CollectivesOfAny, public ::testing::WithParamInterface<WorldCase> {
 protected:
  int size() const override { return std::get<1>(GetParam()); }
  Ranks make_ranks(std::size_t /*segment_bytes*/) const override {
    return make_world_ranks(std::get<0>(GetParam()), size(), std::chrono::milliseconds(500));
  }
  std::vector<std::string> algorithms(Collective collective) const override {
    return algorithms_of(collective, schedule::Access::messages);
  }
  bool tries_every_type() const override { return is_thorough(); }  // A wire carries bytes.
};

TEST_P(CollectivesByWay, EqualTheSerialOracle) { expect_the_serial_oracle(); }

TEST_P(CollectivesByWay, InPlaceAndFromEveryRoot) { expect_it_in_place_and_from_every_root(); }

std::vector<transport::WorldKind> ways() {
  std::vector<transport::WorldKind> list = transport::world_kinds();
  std::erase_if(
      list, [](const auto& kind) { return kind.link == "loopback" || kind.shares_memory(0, 1); });
  return list;
}

std::string way_name(const ::testing::TestParamInfo<WorldCase>& tested) {
  return std::get<0>(tested.param).name + "_ranks" + std::to_string(std::get<1>(tested.param));
}

INSTANTIATE_TEST_SUITE_P(, CollectivesByWay,
                         ::testing::Combine(::testing::ValuesIn(ways()), ::testing::Values(2, 4)),
                         way_name);

}  // namespace
}  // namespace stretto::testing
