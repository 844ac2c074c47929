// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Programs get the errors that the README shows.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <regex>
#include <string>
#include <thread>

#include "stretto/base/error.h"
#include "stretto/job/threads.h"
#include "tests/contract/rank_communicators.h"
#include "tests/support/failures.h"
#include "tests/support/files.h"

namespace stretto::testing {
namespace {

// Replaces what differs between runs: processes, times and line breaks.
std::string without_circumstances(std::string text) {
  text = std::regex_replace(text, std::regex("\\s+"), " ");
  text = std::regex_replace(text, std::regex("\\([^()]* pid \\d+[^()]*\\)"), "(PROCESS)");
  return std::regex_replace(text, std::regex("\\d+\\.\\d s"), "T s");
}

bool readme_has(const std::string& text) {
  const std::string readme = read_file(STRETTO_SOURCE_DIR "/README.md");
  return without_circumstances(readme).find(without_circumstances(text)) != std::string::npos;
}

TEST(Readme, TellsWhatALateRankDoesAsTheErrorDoes) {
  auto ranks = make_thread_ranks({.size = 3});
  std::atomic<int> failed{0};
  std::string shown;
  on_all(ranks, [&](Communicator& comm) {
    std::vector<float> data(12);
    comm.all_reduce(data).wait();
    if (comm.rank() == 2) {
      comm.note("loading data");
      while (failed < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    // So rank 1 hears of the timeout from rank 0, and not the other way round.
    const std::chrono::seconds patience(comm.rank() == 0 ? 2 : 60);
    const std::string text =
        error_of<Timeout>([&] { comm.all_reduce(data, {.timeout = patience}).wait(); });
    ++failed;
    if (comm.rank() == 0) shown = text;
  });
  EXPECT_TRUE(readme_has(shown)) << shown;
}

TEST(Readme, TellsOfADisagreementAsTheErrorDoes) {
  auto ranks = make_thread_ranks({.size = 2});
  std::array<std::string, 2> texts;
  on_all(ranks, [&](Communicator& comm) {
    std::vector<float> data(12);
    texts[static_cast<std::size_t>(comm.rank())] = error_of<Mismatch>(
        [&] { comm.broadcast(data, {.root = comm.rank() == 1 ? 1 : 0}).wait(); });
  });
  // The rank that notices first is named first.
  const std::regex calls("rank (.) called ([^.]*) as operation #1, rank (.) called ([^.]*)\\.");
  for (const std::string& text : texts) {
    std::smatch call;
    ASSERT_TRUE(std::regex_search(text, call, calls)) << text;
    const std::string turned =
        call.format("rank $3 called $4 as operation #1, rank $1 called $2.") + call.suffix().str();
    EXPECT_TRUE(readme_has(call.str() + call.suffix().str()) || readme_has(turned)) << text;
  }
}

}  // namespace
}  // namespace stretto::testing
