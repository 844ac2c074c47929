// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What has run before makes no system call on mapped memory, where each rank has a core, and takes
// no lock.

#include <algorithm>
#include <cstdio>
#include <map>
#include <sstream>

#include "stretto/base/cores.h"
#include "tests/end_to_end/tool.h"

namespace stretto {
namespace {

using testing::Arguments;
using testing::Ended;

constexpr const char* kCountedAtAll = "a question for the parent, locked";
constexpr std::size_t kNames = 10;
constexpr int kAttempts = 10;
// Of both ranks, in a run of some milliseconds: about twenty, but hundreds where they share a core.
constexpr int kInterruptionsMax = 100;

Ended run_once() {
  return testing::run(
      Arguments{"run", "-n", "2", "--no-prefix", "--", STRETTO_BIN_DIR "/system_call_rank_program"},
      {});
}

// How many calls of a thousand made a system call or took a lock, on the rank with more.
struct Counts {
  int calls = 0;
  int locked = 0;
};

struct Counted {
  std::map<std::string, Counts> counts;  // By what was called.
  int interruptions = 0;
};

Counted read(const std::string& output) {
  Counted run;
  std::istringstream lines(output);
  std::string line;
  while (std::getline(lines, line)) {
    int calls = 0;
    int locked = 0;
    int interruptions = 0;
    if (std::sscanf(line.c_str(), "interrupted %d", &interruptions) == 1) {
      run.interruptions += interruptions;
    } else if (std::sscanf(line.c_str(), "%d and %d of 1000:", &calls, &locked) == 2) {
      Counts& counts = run.counts[line.substr(line.find(": ") + 2)];
      counts.calls = std::max(counts.calls, calls);
      counts.locked = std::max(counts.locked, locked);
    }
  }
  return run;
}

bool are_few(const Counted& run) {
  return std::ranges::all_of(run.counts, [](const auto& entry) {
    const auto& [name, counts] = entry;
    return name == kCountedAtAll || (counts.calls < 100 && counts.locked < 100);
  });
}

// A rank whose core does something else for a while is late; the other then waits with a lock, and
// sleeps. Such runs say nothing, so the best of some counts.
TEST(SystemCall, IsNotMadeByWhatHasRunBeforeNorALockTaken) {
  if (usable_cores() < 2) GTEST_SKIP() << "skipped: ranks that share a core yield it";
  bool always_disturbed = true;
  Ended ended;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    ended = run_once();
    ASSERT_EQ(ended.status, 0) << ended.output << ended.errors;
    if (ended.output.find("cannot count") != std::string::npos) {
      GTEST_SKIP() << "skipped: " << ended.output;
    }
    const Counted run = read(ended.output);
    ASSERT_EQ(run.counts.size(), kNames) << ended.output;
    ASSERT_EQ(run.counts.at(kCountedAtAll).calls, 1000);
    ASSERT_EQ(run.counts.at(kCountedAtAll).locked, 1000);
    if (are_few(run)) return;
    always_disturbed = always_disturbed && run.interruptions > kInterruptionsMax;
  }
  if (always_disturbed) GTEST_SKIP() << "skipped: something else uses the cores";
  FAIL() << ended.output;
}

}  // namespace
}  // namespace stretto
