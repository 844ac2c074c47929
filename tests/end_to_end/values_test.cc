// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The values of every collective between real processes, over shared memory and over sockets.

#include <gtest/gtest.h>

#include <string>

#include "tests/end_to_end/tool.h"

namespace stretto {
namespace {

using testing::Arguments;
using testing::Ended;
using testing::operator+;
using testing::Variables;

Ended values_of(int ranks, const Variables& variables, const Arguments& arguments = {}) {
  return testing::run(Arguments{"run", "-n", std::to_string(ranks), "--no-prefix", "--",
                                STRETTO_BIN_DIR "/values_rank_program"} +
                          arguments,
                      variables);
}

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

struct Case {
  const char* name;
  int ranks;
  Variables variables;
};
std::ostream& operator<<(std::ostream& out, const Case& tested) { return out << tested.name; }

class Values : public ::testing::TestWithParam<Case> {};

TEST_P(Values, OfAllCollectivesAndBlobsAreThoseOfTheOracle) {
  const auto& [name, ranks, variables] = GetParam();
  const Ended ended = values_of(ranks, variables);
  EXPECT_EQ(ended.status, 0) << ended.output << ended.errors;
  EXPECT_EQ(occurrences(ended.output, "right\n"), static_cast<std::size_t>(ranks)) << ended.output;
}

const Variables kTcp = {{"STRETTO_TRANSPORT", "tcp"}};
const Variables kSingleCopy = {{"STRETTO_SINGLE_COPY", "always"}};

INSTANTIATE_TEST_SUITE_P(, Values,
                         ::testing::Values(Case{"shm_2", 2, {}}, Case{"shm_3", 3, {}},
                                           Case{"tcp_2", 2, kTcp}, Case{"tcp_3", 3, kTcp},
                                           Case{"single_copy_2", 2, kSingleCopy},
                                           Case{"single_copy_3", 3, kSingleCopy}),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(SingleCopy, IsOneOfThreeWishes) {
  const Ended ended = values_of(2, {{"STRETTO_SINGLE_COPY", "yes"}}, {"choice"});
  EXPECT_NE(ended.status, 0);
  EXPECT_NE(ended.output.find("STRETTO_SINGLE_COPY=yes is not one of automatic, always, off"),
            std::string::npos)
      << ended.errors << ended.output;
}

TEST(Algorithm, IsThatOfTheEnvironmentWhereItExists) {
  const Variables tcp = {{"STRETTO_TRANSPORT", "tcp"}, {"STRETTO_LINK_CACHE", "off"}};
  for (const std::string name : {"ring", "binomial_tree", "textbook_ring"}) {
    Variables variables = tcp;
    variables["STRETTO_ALGORITHM"] = name;
    const Ended ended = values_of(2, variables, {"choice"});
    EXPECT_EQ(ended.status, 0) << ended.output << ended.errors;
    EXPECT_NE(ended.output.find("chosen " + name + ": it was asked for"), std::string::npos)
        << ended.output;
  }
  const Ended ended = values_of(2, tcp, {"choice"});
  EXPECT_EQ(ended.output.find("asked for"), std::string::npos) << ended.output;
  EXPECT_NE(ended.output.find("chosen "), std::string::npos) << ended.output;
}

}  // namespace
}  // namespace stretto
