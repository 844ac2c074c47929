// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Two network namespaces stand for two hosts with two ranks each: shared memory inside, tcp
// between.

#include <fmt/format.h>

#include "tests/end_to_end/bits.h"
#include "tests/end_to_end/hosts.h"

namespace stretto {
namespace {

using testing::Arguments;
using testing::Ended;
using testing::operator+;
using testing::Tool;
using testing::Variables;

// Joined by a virtual cable.
class TwoHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!hosts_.made()) GTEST_SKIP() << "cannot make network namespaces (needs root and iproute2)";
  }

  // The launcher of one of the hosts.
  Tool launch(int host, const std::string& program, const std::string& key) {
    return Tool(Arguments{"run", "-n", "2", "--hosts", "10.77.0.1,10.77.0.2", "--host-index",
                          std::to_string(host), "--", STRETTO_BIN_DIR "/" + program},
                {{"STRETTO_JOB_KEY", key}}, hosts_.on(host));
  }

  testing::Hosts hosts_{2};
};

TEST_F(TwoHosts, MeetAtAStoreThatRankZeroHosts) {
  const auto rank = [&](int number) {
    return testing::Process(hosts_.on(number) + Arguments{STRETTO_BIN_DIR "/join_rank_program"},
                            {{"RANK", std::to_string(number)},
                             {"WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "10.77.0.1"},
                             {"MASTER_PORT", "29500"}});
  };
  testing::Process one = rank(1);
  testing::Process zero = rank(0);
  EXPECT_EQ(zero.status(), 0) << zero.errors().finish();
  EXPECT_EQ(one.status(), 0) << one.errors().finish();
  EXPECT_EQ(one.output().finish(), "rank 1 of 2: sum 1\n");
}

TEST_F(TwoHosts, GiveTheBitsOfOne) {
  const std::string key(64, '7');
  Tool second = launch(1, "bits_rank_program", key);
  Tool first = launch(0, "bits_rank_program", key);
  EXPECT_EQ(first.status(), 0) << first.errors().finish();
  EXPECT_EQ(second.status(), 0) << second.errors().finish();
  const Ended one =
      testing::run({"run", "-n", "4", "--no-prefix", "--", STRETTO_BIN_DIR "/bits_rank_program"});
  const std::string expected = one.output.substr(0, one.output.find(' ', 5));
  ASSERT_EQ(expected.size(), 21u) << one.output;
  const std::string output = first.output().finish();
  std::size_t lines = 0;
  for (std::size_t at = output.find("bits "); at != std::string::npos;
       at = output.find("bits ", at + 1)) {
    EXPECT_EQ(output.substr(at, 21), expected);
    ++lines;
  }
  // Of two ranks on this host, with private buffers and with registered ones.
  EXPECT_EQ(lines, 2 * 2 * testing::canonical_algorithms().size());
  const std::string errors = first.errors().finish();
  EXPECT_NE(errors.find("different network namespaces"), std::string::npos) << errors;
}

}  // namespace
}  // namespace stretto
