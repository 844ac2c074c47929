// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The same bits, whatever carries them: processes over shared memory and tcp, threads on loopback.

#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include <fmt/format.h>

#include "stretto/job/threads.h"
#include "tests/end_to_end/bits.h"
#include "tests/end_to_end/tool.h"

namespace stretto {
namespace {

using testing::Ended;
using testing::Variables;

// The different hashes that a job of processes prints.
std::set<std::string> hashes_of_processes(int ranks, const Variables& variables) {
  const Ended ended = testing::run({"run", "-n", std::to_string(ranks), "--no-prefix", "--",
                                    STRETTO_BIN_DIR "/bits_rank_program"},
                                   variables);
  EXPECT_EQ(ended.status, 0) << ended.errors;
  std::set<std::string> hashes;
  std::istringstream lines(ended.output);
  int count = 0;
  for (std::string word; lines >> word;) {
    if (word != "bits") continue;
    lines >> word;
    hashes.insert(word);
    ++count;
  }
  EXPECT_EQ(count, ranks * 2 * static_cast<int>(testing::canonical_algorithms().size()));
  return hashes;
}

std::set<std::string> hashes_of_threads(int size) {
  std::set<std::string> hashes;
  std::mutex mutex;
  for (const bool shared_memory : {false, true}) {
    auto ranks = make_thread_ranks({.size = size, .shared_memory = shared_memory});
    std::vector<std::thread> threads;
    for (auto& rank : ranks) {
      threads.emplace_back([&] {
        const std::uint64_t hash = testing::hash_of_all_reduces(*rank, "", true);
        const std::lock_guard lock(mutex);
        hashes.insert(fmt::format("{:016x}", hash));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  return hashes;
}

class Bits : public ::testing::TestWithParam<int> {};

TEST_P(Bits, AreTheSameOnLoopbackShmAndTcpByEveryCanonicalAlgorithm) {
  const int ranks = GetParam();
  const auto expected = hashes_of_threads(ranks);
  EXPECT_EQ(expected.size(), 1u);
  EXPECT_EQ(hashes_of_processes(ranks, {}), expected);
  EXPECT_EQ(hashes_of_processes(ranks, {{"STRETTO_TRANSPORT", "tcp"}}), expected);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Bits, ::testing::Values(2, 3, 4));

}  // namespace
}  // namespace stretto
