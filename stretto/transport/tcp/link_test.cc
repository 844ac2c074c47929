// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/tcp/link.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/support/socket_pairs.h"

namespace stretto::transport::tcp {
namespace {

// The peer answers what it reads, as credits do, and begins long after the link has been given up.
TEST(TcpLink, WhatHasBeenWrittenArrivesAlthoughThePeerAnswersLate) {
  auto [mine, theirs] = testing::make_tcp_pair(16 * 1024);
  auto link = TcpLink::create(std::move(mine)).or_throw();
  const std::vector<std::byte> piece(4096);
  const std::array<ConstByteSpan, 1> pieces{piece};
  std::size_t written = 0;
  for (int turn = 0; turn < 1000; ++turn) {
    const std::size_t taken = link->write(pieces).or_throw();
    if (taken == 0) break;
    written += taken;
  }
  ASSERT_LT(written, 1000 * piece.size());
  std::thread leaving([&] { link.reset(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  std::size_t arrived = 0;
  std::array<std::byte, 1000> buffer;
  ssize_t given = 0;
  do {
    (void)::send(theirs.get(), buffer.data(), 1, MSG_NOSIGNAL);
    given = ::recv(theirs.get(), buffer.data(), buffer.size(), 0);
    if (given > 0) arrived += static_cast<std::size_t>(given);
  } while (given > 0);
  EXPECT_EQ(given, 0);
  EXPECT_EQ(arrived, written);
  leaving.join();
}

TEST(TcpLink, APeerThatTakesNothingHoldsTheEndUpForASecond) {
  auto [mine, theirs] = testing::make_tcp_pair(16 * 1024);
  auto link = TcpLink::create(std::move(mine)).or_throw();
  const std::vector<std::byte> piece(1024 * 1024);
  const std::array<ConstByteSpan, 1> pieces{piece};
  while (link->write(pieces).or_throw() > 0) {
  }
  const TimePoint begin = Clock::now();
  link.reset();
  const Duration took = Clock::now() - begin;
  EXPECT_GE(took, std::chrono::milliseconds(900));
  EXPECT_LE(took, std::chrono::seconds(3));
}

}  // namespace
}  // namespace stretto::transport::tcp
