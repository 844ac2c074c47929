// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "stretto/job/threads.h"
#include "tests/contract/thread_library.h"
#include "tests/support/bytes.h"
#include "tests/support/rank_list.h"

namespace stretto::testing {

// Small whole numbers that differ from round to round and have exact sums. They repeat, so that
// they can be copied and compared in blocks: a sanitizer checks every single write.
inline constexpr std::size_t kWholeNumbers = 7;
inline float whole_number(int factor, int summands, int round, std::size_t i) {
  return static_cast<float>(factor * (round % 50 + 1) +
                            summands * static_cast<int>(i % kWholeNumbers));
}
inline void fill_with_whole_numbers(std::span<float> data, Rank rank, int round) {
  std::size_t made = std::min(data.size(), kWholeNumbers);
  for (std::size_t i = 0; i < made; ++i) data[i] = whole_number(rank.value() + 1, 1, round, i);
  for (; made < data.size(); made *= 2) {
    const auto rest = data.subspan(made);
    std::ranges::copy(data.first(std::min(made, rest.size())), rest.begin());
  }
}

// Passes in the numbers of rank `self` of the job, and expects the sums over `members` of the
// group.
inline void expect_sums(Communicator& group, Rank self, const std::vector<Rank>& members,
                        std::span<float> data, int round) {
  fill_with_whole_numbers(data, self, round);
  group.all_reduce(data).wait();
  int factor = 0;
  for (const Rank member : members) factor += member.value() + 1;
  const std::size_t first = std::min(data.size(), kWholeNumbers);
  for (std::size_t i = 0; i < first; ++i) {
    ASSERT_EQ(data[i], whole_number(factor, static_cast<int>(members.size()), round, i)) << round;
  }
  const auto bytes = std::as_bytes(data);
  const std::size_t repeated = bytes.size() - first * sizeof(float);
  ASSERT_TRUE(same_bytes(bytes.first(repeated), bytes.last(repeated))) << "round " << round;
}

// Ranks with mapped memory between them, and ranks that have messages only; each without and with a
// progress thread.
class OnBoth : public ::testing::TestWithParam<std::tuple<bool, ProgressThread>> {
 public:
  static auto both() {
    return ::testing::Combine(::testing::Bool(),
                              ::testing::Values(ProgressThread::never, ProgressThread::always));
  }
  static std::string name(const ::testing::TestParamInfo<ParamType>& tested) {
    const auto [mapped, thread] = tested.param;
    return std::string(mapped ? "mapped" : "messages") +
           (thread == ProgressThread::always ? "_progress_thread" : "");
  }

 protected:
  static RankList make(int size, Duration timeout = std::chrono::seconds(30)) {
    const auto [mapped, thread] = GetParam();
    return make_thread_ranks(
        {.size = size, .shared_memory = mapped, .progress_thread = thread, .timeout = timeout});
  }
};

// Ranks of every kind: those of OnBoth, and ranks with a library.
struct RankMaker {
  std::string name;
  std::function<RankList(int size)> make;

  static std::vector<RankMaker> all() {
    std::vector<RankMaker> makers = {{"library", [](int size) {
                                        return make_library_ranks(size,
                                                                  std::make_shared<LibraryFacts>(),
                                                                  std::chrono::seconds(30));
                                      }}};
    for (const bool mapped : {false, true}) {
      for (const ProgressThread thread : {ProgressThread::never, ProgressThread::always}) {
        makers.push_back({OnBoth::name({{mapped, thread}, 0}), [=](int size) {
                            return make_thread_ranks({.size = size,
                                                      .shared_memory = mapped,
                                                      .progress_thread = thread,
                                                      .timeout = std::chrono::seconds(30)});
                          }});
      }
    }
    return makers;
  }
};

class OnEveryKind : public ::testing::TestWithParam<RankMaker> {
 public:
  static auto all() { return ::testing::ValuesIn(RankMaker::all()); }
  static std::string name(const ::testing::TestParamInfo<RankMaker>& tested) {
    return tested.param.name;
  }

 protected:
  static RankList make(int size) { return GetParam().make(size); }
};

}  // namespace stretto::testing
