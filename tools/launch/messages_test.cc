// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/messages.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace stretto::launch {
namespace {

TEST(LauncherMessages, BytesOfNoEncodingArriveAsTheyAre) {
  std::string all;
  for (int byte = 1; byte < 256; ++byte) all += static_cast<char>(byte);
  Order order{.directory = "/caf\xe9", .environment = {"A=" + all, "B="}, .marker = "x "};
  order.options.command = {"train", all, "", "na\xc3\xafve"};
  order.options.hosts = {{"node", 1}};
  const std::string line = format_order(order);
  EXPECT_EQ(line.find('\n'), line.size() - 1) << "one line";
  const Order parsed = parse_order(line).or_throw();
  EXPECT_EQ(parsed.options.command, order.options.command);
  EXPECT_EQ(parsed.environment, order.environment);
  EXPECT_EQ(parsed.directory, order.directory);
}

TEST(LauncherMessages, AnEventIsAsOldAsItWas) {
  const RankEvent event{.kind = RankEvent::Kind::killed,
                        .local_rank = 3,
                        .number = 9,
                        .at = Clock::now() - std::chrono::seconds(5),
                        .obituary = "killed by SIGKILL"};
  const RankEvent parsed = parse_event(format_event(event)).or_throw();
  EXPECT_EQ(parsed.local_rank, 3);
  EXPECT_EQ(parsed.number, 9);
  EXPECT_NEAR(seconds(parsed.at - event.at), 0.0, 0.5);
  EXPECT_EQ(parsed.obituary, event.obituary);
}

TEST(LauncherMessages, AnObituaryIsALineThatIsNoSignal) {
  const std::string line = format_obituary({.rank = 12, .how = "killed by\nSIGKILL"});
  EXPECT_EQ(line.find('\n'), line.size() - 1) << "one line";
  const Obituary parsed = parse_obituary(line).or_throw();
  EXPECT_EQ(parsed.rank, 12);
  EXPECT_EQ(parsed.how, "killed by\nSIGKILL");
  EXPECT_FALSE(parse_obituary("15").ok());
}

TEST(LauncherMessages, ARestartIsALineThatIsNoObituary) {
  const std::string line = format_restart({.local_rank = 12, .number = 3});
  const RestartOrder parsed = parse_restart(line).or_throw();
  EXPECT_EQ(parsed.local_rank, 12);
  EXPECT_EQ(parsed.number, 3);
  EXPECT_FALSE(parse_obituary(line).ok());
  EXPECT_FALSE(parse_restart(format_obituary({.rank = 12, .how = "killed"})).ok());
}

}  // namespace
}  // namespace stretto::launch
