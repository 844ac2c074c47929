// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What has run before makes no system call on mapped memory, where each rank has a core.

#include <map>
#include <sstream>

#include "stretto/base/cores.h"
#include "tests/end_to_end/tool.h"

namespace stretto {
namespace {

using testing::Arguments;
using testing::Ended;

// By what was called, of each rank: how many calls of a thousand made a system call.
std::multimap<std::string, int> counts_in(const std::string& output) {
  std::multimap<std::string, int> counts;
  std::istringstream lines(output);
  std::string line;
  while (std::getline(lines, line)) {
    const std::size_t name = line.find(": ");
    if (line.find(" of 1000: ") == std::string::npos) continue;
    counts.emplace(line.substr(name + 2), std::stoi(line));
  }
  return counts;
}

TEST(SystemCall, IsNotMadeByWhatHasRunBefore) {
  if (usable_cores() < 2) GTEST_SKIP() << "skipped: ranks that share a core yield it";
  const Ended ended = testing::run(
      Arguments{"run", "-n", "2", "--no-prefix", "--", STRETTO_BIN_DIR "/system_call_rank_program"},
      {});
  ASSERT_EQ(ended.status, 0) << ended.output << ended.errors;
  if (ended.output.find("cannot count") != std::string::npos) {
    GTEST_SKIP() << "skipped: " << ended.output;
  }
  const std::string counted_at_all = "a question for the parent";
  const auto counts = counts_in(ended.output);
  EXPECT_EQ(counts.count(counted_at_all), 2u) << ended.output;
  EXPECT_EQ(counts.size(), 20u) << ended.output;
  for (const auto& [name, calls] : counts) {
    if (name == counted_at_all) {
      EXPECT_EQ(calls, 1000);
    } else {
      // Mostly none or one. Where cores have something else to do, ranks sleep in some.
      EXPECT_LT(calls, 900) << name;
    }
  }
}

}  // namespace
}  // namespace stretto
