// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What becomes of a job of which one rank lacks descriptors or address space for a while.

#include <fmt/format.h>

#include "tests/end_to_end/tool.h"

namespace stretto {
namespace {

using testing::Arguments;
using testing::Ended;

struct Setting {
  const char* what;
  const char* where;
  const char* remedy;
};
std::ostream& operator<<(std::ostream& out, const Setting& setting) {
  return out << setting.what << "_" << setting.where;
}

class Shortage : public ::testing::TestWithParam<Setting> {
 protected:
  static Ended run(const char* how_long) {
    return testing::run(Arguments{"run", "-n", "3", "--", STRETTO_BIN_DIR "/shortage_rank_program",
                                  GetParam().what, how_long, GetParam().where});
  }
};

TEST_P(Shortage, GoesUnseenIfItIsOverSoon) {
  const Ended ended = run("passing");
  EXPECT_EQ(ended.status, 0);
  for (const char* rank : {"[0]", "[1]", "[2]"}) {
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, fmt::format("{} right", rank), ended.output);
  }
  EXPECT_EQ(ended.errors, "");
}

// The operation could take 40 s; the test as a whole takes less.
TEST_P(Shortage, IsTheCauseThatAllRanksHearOfIfItLasts) {
  const TimePoint begin = Clock::now();
  const Ended ended = run("lasting");
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));
  for (const char* rank : {"[0]", "[1]", "[2]"}) {
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, fmt::format("{} failed 2: ", rank), ended.output);
  }
  std::size_t causes = 0;
  for (std::size_t at = 0; (at = ended.output.find(GetParam().remedy, at)) != std::string::npos;
       ++at) {
    ++causes;
  }
  EXPECT_EQ(causes, 3u) << ended.output;
}

INSTANTIATE_TEST_SUITE_P(, Shortage,
                         ::testing::Values(Setting{"files", "reduce", "; raise `ulimit -n`"},
                                           Setting{"addresses", "reduce", "; raise `ulimit -v`"},
                                           Setting{"files", "split", "; raise `ulimit -n`"},
                                           Setting{"addresses", "split", "; raise `ulimit -v`"}),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace stretto
