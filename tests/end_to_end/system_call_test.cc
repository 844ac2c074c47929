// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What has run before makes no system call on mapped memory, where each rank has a core.

#include <algorithm>
#include <map>
#include <sstream>

#include "stretto/base/cores.h"
#include "tests/end_to_end/tool.h"

namespace stretto {
namespace {

using testing::Arguments;
using testing::Ended;

constexpr const char* kCountedAtAll = "a question for the parent";
constexpr std::size_t kNames = 10;

Ended run_once() {
  return testing::run(
      Arguments{"run", "-n", "2", "--no-prefix", "--", STRETTO_BIN_DIR "/system_call_rank_program"},
      {});
}

// By what was called: how many calls of a thousand made a system call, on the rank with more.
std::map<std::string, int> counts_in(const std::string& output) {
  std::map<std::string, int> counts;
  std::istringstream lines(output);
  std::string line;
  while (std::getline(lines, line)) {
    const std::size_t name = line.find(": ");
    if (line.find(" of 1000: ") == std::string::npos) continue;
    int& count = counts[line.substr(name + 2)];
    count = std::max(count, std::stoi(line));
  }
  return counts;
}

// Where a core has something else to do, ranks sleep in half of the calls, or more: that is not
// what is tested, and passes.
TEST(SystemCall, IsNotMadeByWhatHasRunBefore) {
  if (usable_cores() < 2) GTEST_SKIP() << "skipped: ranks that share a core yield it";
  std::map<std::string, int> least;
  bool few = false;
  for (int attempt = 0; attempt < 10 && !few; ++attempt) {
    const Ended ended = run_once();
    ASSERT_EQ(ended.status, 0) << ended.output << ended.errors;
    if (ended.output.find("cannot count") != std::string::npos) {
      GTEST_SKIP() << "skipped: " << ended.output;
    }
    few = true;
    for (const auto& [name, calls] : counts_in(ended.output)) {
      int& count = least.try_emplace(name, calls).first->second;
      count = std::min(count, calls);
      few = few && (count < 100 || name == kCountedAtAll);
    }
  }
  EXPECT_EQ(least.size(), kNames);
  EXPECT_EQ(least[kCountedAtAll], 1000);
  least.erase(kCountedAtAll);
  for (const auto& [name, calls] : least) EXPECT_LT(calls, 900) << name;
}

}  // namespace
}  // namespace stretto
