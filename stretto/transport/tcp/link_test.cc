// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/tcp/link.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include "stretto/base/poll.h"
#include "stretto/transport/tcp/striped_link.h"
#include "tests/support/expect_contains.h"
#include "tests/support/socket_pairs.h"
#include "tests/support/soon.h"

namespace stretto::transport::tcp {
namespace {

std::unique_ptr<TcpLink> link_of(FileDescriptor socket,
                                 Duration network_timeout = Duration::zero()) {
  return std::make_unique<TcpLink>(std::make_unique<SocketStream>(std::move(socket)),
                                   network_timeout);
}

// The peer sends as it reads, as with credit, and begins some time after the end of the link has
// begun.
TEST(TcpLink, WhatHasBeenWrittenArrivesAlthoughThePeerAnswersLate) {
  auto [mine, theirs] = testing::make_tcp_pair(16 * 1024);
  auto link = link_of(std::move(mine));
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

void fill(TcpLink& link) {
  const std::vector<std::byte> piece(1024 * 1024);
  const std::array<ConstByteSpan, 1> pieces{piece};
  while (link.write(pieces).or_throw() > 0) {
  }
}

TEST(TcpLink, PeersThatTakeNothingHoldTheEndUpForASecondTogether) {
  std::vector<FileDescriptor> peers;
  std::vector<std::unique_ptr<TcpLink>> links;
  for (int i = 0; i < 4; ++i) {
    auto [mine, theirs] = testing::make_tcp_pair(16 * 1024);
    peers.push_back(std::move(theirs));
    links.push_back(link_of(std::move(mine)));
    fill(*links.back());
  }
  const TimePoint begin = Clock::now();
  for (std::size_t done = 0; done < links.size();) {
    done = 0;
    for (auto& link : links) done += link->finish() ? 1u : 0u;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  links.clear();
  const Duration took = Clock::now() - begin;
  EXPECT_GE(took, std::chrono::milliseconds(900));
  EXPECT_LE(took, std::chrono::seconds(3));
}

// From now on, nothing that is sent to the socket reaches it, and its kernel answers nothing.
void cut_off(const FileDescriptor& socket) {
  sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program{.len = 1, .filter = &nothing};
  ASSERT_EQ(::setsockopt(socket.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)), 0);
}

TEST(TcpLink, ASilentNetworkDoesNotHoldTheEndUp) {
  auto [mine, theirs] = testing::make_tcp_pair(16 * 1024);
  auto link = link_of(std::move(mine), std::chrono::seconds(1));
  cut_off(theirs);
  fill(*link);
  EXPECT_TRUE(comes_true([&] { return link->check_contact(Clock::now()).lost; }));
  const TimePoint begin = Clock::now();
  link.reset();
  EXPECT_LE(Clock::now() - begin, std::chrono::milliseconds(500));
}

// The kernel ends the connection after a while. This test makes it do so sooner.
TEST(TcpLink, WithoutALimitNobodyKnowsForHowLongTheNetworkWasSilent) {
  auto [mine, theirs] = testing::make_tcp_pair();
  const auto link = link_of(std::move(mine));
  const int limit_milliseconds = 500;
  ASSERT_EQ(::setsockopt(link->descriptor(), IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_milliseconds,
                         sizeof(limit_milliseconds)),
            0);
  cut_off(theirs);
  std::array<std::byte, 100> bytes{};
  const std::array<ConstByteSpan, 1> pieces{bytes};
  ASSERT_EQ(link->write(pieces).or_throw(), bytes.size());
  Status end;
  ASSERT_TRUE(comes_true([&] {
    end = link->read(bytes).status();
    return !end.ok();
  }));
  expect_failure(end, StatusCode::peer_lost, "timed out; the network to it, or its host, was down");
}

TEST(TcpLink, WhoHasAskedWhetherTheEndIsThereNeedNotWaitForIt) {
  auto [mine, theirs] = testing::make_tcp_pair(16 * 1024);
  auto link = link_of(std::move(mine), std::chrono::seconds(10));
  cut_off(theirs);
  fill(*link);
  EXPECT_FALSE(link->finish());
  const TimePoint begin = Clock::now();
  link.reset();
  EXPECT_LE(Clock::now() - begin, std::chrono::milliseconds(500));
}

TEST(TcpLink, WhatHasBeenWrittenArrivesAfterAnOutageThatHeals) {
  auto [mine, theirs] = testing::make_tcp_pair(16 * 1024);
  auto link = link_of(std::move(mine), std::chrono::seconds(5));
  cut_off(theirs);
  const std::array<std::byte, 100> piece{};
  const std::array<ConstByteSpan, 1> pieces{piece};
  ASSERT_EQ(link->write(pieces).or_throw(), piece.size());
  const auto is_silent = [&] {
    return link->check_contact(Clock::now()).silence >= std::chrono::milliseconds(1200);
  };
  ASSERT_TRUE(comes_true(is_silent, Deadline::after(std::chrono::seconds(4))));
  std::thread leaving([&] { link.reset(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const int unused = 0;
  ASSERT_EQ(::setsockopt(theirs.get(), SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof(unused)), 0);
  // If the socket were closed, it would answer this byte with a reset.
  EXPECT_EQ(::send(theirs.get(), piece.data(), 1, MSG_NOSIGNAL), 1);
  std::array<std::byte, 200> buffer;
  std::size_t arrived = 0;
  ssize_t given = 0;
  do {
    given = ::recv(theirs.get(), buffer.data(), buffer.size(), 0);
    if (given > 0) arrived += static_cast<std::size_t>(given);
  } while (given > 0);
  EXPECT_EQ(given, 0);
  EXPECT_EQ(arrived, piece.size());
  leaving.join();
}

// Asking the socket for more would cost each small message another system call.
TEST(TcpLink, ABufferThatIsNotFilledHasEmptiedTheSocket) {
  auto [mine, theirs] = testing::make_tcp_pair();
  const auto link = link_of(std::move(mine));
  std::array<std::byte, 100> into{};
  ASSERT_EQ(::send(theirs.get(), into.data(), 10, 0), 10);
  link->service(EPOLLIN);
  EXPECT_EQ(link->read(into).or_throw(), 10u);
  EXPECT_FALSE(link->readable());
}

// Epoll reports the bytes and the end at once, and never again.
TEST(TcpLink, AnEndThatComesWithTheLastBytesIsFound) {
  auto [mine, theirs] = testing::make_tcp_pair();
  const auto link = link_of(std::move(mine));
  const FileDescriptor poll(::epoll_create1(EPOLL_CLOEXEC));
  ASSERT_TRUE(watch(poll.get(), link->descriptor(), EPOLLIN | EPOLLRDHUP | EPOLLET, 0).ok());
  std::array<std::byte, 100> into{};
  ASSERT_EQ(::send(theirs.get(), into.data(), 10, 0), 10);
  theirs.reset();
  epoll_event event{};
  while ((event.events & EPOLLRDHUP) == 0) {
    ASSERT_EQ(::epoll_wait(poll.get(), &event, 1, 5000), 1);
  }
  link->service(event.events);
  EXPECT_EQ(link->read(into).or_throw(), 10u);
  ASSERT_TRUE(link->readable());
  EXPECT_EQ(link->read(into).status().code(), StatusCode::peer_lost);
}

TEST(ConnectionState, SaysForHowLongThePeerHadNoRoom) {
  auto [mine, theirs] = testing::make_tcp_pair(16 * 1024);
  const auto link = link_of(std::move(mine));
  fill(*link);
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  const auto state = read_connection_state(link->descriptor());
  ASSERT_TRUE(state);
  EXPECT_GE(state->without_room, std::chrono::milliseconds(200));
  EXPECT_GT(state->waiting_bytes, 0u);
}

// With fewer tries it would notice too late that an outage is over.
TEST(TcpLink, TheKernelTriesAgainEightTimesWithinTheLimit) {
  auto [mine, theirs] = testing::make_tcp_pair();
  constexpr int kRetransmissionPauseMax = 44;  // TCP_RTO_MAX_MS
  int milliseconds = 0;
  socklen_t length = sizeof(milliseconds);
  const auto read = [&](int socket) {
    return ::getsockopt(socket, IPPROTO_TCP, kRetransmissionPauseMax, &milliseconds, &length);
  };
  if (read(mine.get()) != 0) GTEST_SKIP() << "needs Linux 6.15";
  const auto link = link_of(std::move(mine), std::chrono::seconds(10));
  ASSERT_EQ(read(link->descriptor()), 0);
  EXPECT_NEAR(milliseconds, 1250, 10) << "in ticks of the kernel";
}

// A link over two connections, with raw sockets at their other ends.
struct Striped {
  explicit Striped(int buffer_bytes = 0, Duration network_timeout = {}) {
    std::vector<std::unique_ptr<TcpLink>> stripes;
    for (int stripe = 0; stripe < 2; ++stripe) {
      auto [mine, theirs] = testing::make_tcp_pair(buffer_bytes);
      stripes.push_back(link_of(std::move(mine), network_timeout));
      ends.push_back(std::move(theirs));
    }
    link = StripedLink::create(std::move(stripes)).or_throw();
  }
  std::vector<FileDescriptor> ends;
  std::unique_ptr<Link> link;
};

TEST(StripedLink, ASilentNetworkOfTwoLosesThePeer) {
  const Striped striped(16 * 1024, std::chrono::seconds(3));
  cut_off(striped.ends[0]);
  const std::vector<std::byte> piece(1024 * 1024);
  const std::array<ConstByteSpan, 1> pieces{piece};
  while (striped.link->write(pieces).or_throw() > 0) {
  }
  const Deadline deadline = Deadline::after(std::chrono::seconds(20));
  Link::Contact contact;
  while (!contact.lost && !deadline.passed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    contact = striped.link->check_contact(Clock::now());
  }
  EXPECT_TRUE(contact.lost);
  EXPECT_GT(contact.waiting_bytes, 0u);
  EXPECT_LT(contact.sent_rate, 100'000);
}

// Large messages alternate with small frames, as where credit goes between messages.
TEST(StripedLink, EachConnectionGetsItsShareOfTheBytes) {
  const Striped striped(4 << 20);
  const std::vector<std::byte> message(StripedLink::kBlockBytes);
  for (int i = 0; i < 8; ++i) {
    for (const std::size_t bytes : {message.size(), std::size_t{64}}) {
      const std::array<ConstByteSpan, 1> pieces{std::span(message).first(bytes)};
      ASSERT_EQ(striped.link->write(pieces).or_throw(), bytes);
    }
  }
  for (const FileDescriptor& peer : striped.ends) {
    const timeval limit{.tv_sec = 5, .tv_usec = 0};
    ASSERT_EQ(::setsockopt(peer.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    std::vector<std::byte> read(3 * message.size());
    EXPECT_EQ(::recv(peer.get(), read.data(), read.size(), MSG_WAITALL), std::ssize(read));
  }
}

// Fills the first of two connections in the middle of a block, so that the second one is idle.
struct StuckStripe : Striped {
  explicit StuckStripe(Duration network_timeout) : Striped(4 * 1024, network_timeout) {
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 251);
    write();
    EXPECT_LT(written, StripedLink::kBlockBytes);
  }
  void write() {
    std::size_t taken = 0;
    do {
      const std::array<ConstByteSpan, 1> rest{std::span(bytes).subspan(written)};
      taken = link->write(rest).or_throw();
      written += taken;
    } while (taken > 0);
  }

  std::vector<std::byte> bytes = std::vector<std::byte>(3 * StripedLink::kBlockBytes);
  std::size_t written = 0;
};

TEST(StripedLink, ASilentNetworkIsNoticedWhileABlockWaitsInAnother) {
  StuckStripe stuck(std::chrono::seconds(2));
  cut_off(stuck.ends[1]);
  EXPECT_TRUE(comes_true([&] { return stuck.link->check_contact(Clock::now()).lost; }));
}

TEST(StripedLink, SignsOfLifeBesideABlockThatWaitsLeaveTheStreamAlone) {
  StuckStripe stuck(std::chrono::seconds(1));
  pollfd sign{.fd = stuck.ends[1].get(), .events = POLLIN, .revents = 0};
  const Deadline deadline = Deadline::after(std::chrono::seconds(10));
  while (::poll(&sign, 1, 10) == 0 && !deadline.passed()) stuck.link->check_contact(Clock::now());
  EXPECT_FALSE(deadline.passed());
  std::vector<std::unique_ptr<TcpLink>> stripes;
  for (FileDescriptor& peer : stuck.ends) stripes.push_back(link_of(std::move(peer)));
  const auto reader = StripedLink::create(std::move(stripes)).or_throw();
  std::vector<std::byte> read(stuck.bytes.size());
  for (std::size_t got = 0; got < read.size() && !deadline.passed();) {
    reader->service(EPOLLIN);
    got += reader->read(std::span(read).subspan(got)).or_throw();
    stuck.link->service(EPOLLOUT);
    stuck.write();
  }
  EXPECT_EQ(read, stuck.bytes);
}

struct RawPeer : Striped {
  // Sends a block of one byte.
  void send(std::size_t stripe, unsigned char number) {
    const std::array<unsigned char, 9> block{number, 0, 0, 0, 1};
    ASSERT_EQ(::send(ends[stripe].get(), block.data(), block.size(), 0), std::ssize(block));
  }
  Result<std::size_t> read() {
    std::array<std::byte, 16> into;
    link->service(EPOLLIN);
    return link->read(into);
  }
  bool brings_a_byte() {
    return comes_true([&] { return read().or_throw() == 1; });
  }
};

TEST(StripedLink, WhatOneBringsLateArrivesThoughTheOtherHasEndedInGoodOrder) {
  RawPeer peer;
  const TimePoint begin = Clock::now();
  peer.send(0, 0);
  peer.ends[0].reset();
  EXPECT_TRUE(peer.brings_a_byte());
  for (const int passed : {0, 30, 59}) {
    EXPECT_EQ(peer.read().or_throw(), 0u);
    peer.link->check_contact(begin + std::chrono::seconds(passed));
  }
  peer.send(1, 1);
  EXPECT_TRUE(peer.brings_a_byte());
  peer.link->check_contact(begin + std::chrono::seconds(90));
  EXPECT_EQ(peer.read().or_throw(), 0u) << "it has brought something meanwhile";
  peer.ends[1].reset();
  EXPECT_TRUE(comes_true([&] { return peer.read().status().code() == StatusCode::peer_lost; }));
}

TEST(StripedLink, WhatBringsNothingForASecondAfterAResetOfTheOtherIsGivenUp) {
  RawPeer peer;
  const TimePoint begin = Clock::now();
  peer.send(0, 0);
  EXPECT_TRUE(peer.brings_a_byte());
  const linger reset{.l_onoff = 1, .l_linger = 0};
  ASSERT_EQ(::setsockopt(peer.ends[0].get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
  peer.ends[0].reset();
  EXPECT_EQ(peer.read().or_throw(), 0u);
  peer.link->check_contact(begin);
  peer.link->check_contact(begin + std::chrono::milliseconds(900));
  peer.send(1, 1);
  EXPECT_TRUE(peer.brings_a_byte());
  for (const int passed : {1800, 2700}) {
    peer.link->check_contact(begin + std::chrono::milliseconds(passed));
    EXPECT_EQ(peer.read().or_throw(), 0u);
  }
  EXPECT_TRUE(comes_true([&] {
    peer.link->check_contact(begin + std::chrono::seconds(3));
    return peer.read().status().code() == StatusCode::peer_lost;
  }));
}

TEST(StripedLink, APeerThatSendsOnlySignsOfLifeKeepsNobodyWaiting) {
  const Striped striped;
  std::vector<std::byte> bytes(2000 * 8);
  // Block 0, of one byte, follows the signs of life.
  bytes.resize(bytes.size() + 9);
  bytes[bytes.size() - 5] = std::byte{1};
  bytes.back() = std::byte{42};
  ASSERT_EQ(::send(striped.ends.front().get(), bytes.data(), bytes.size(), 0), std::ssize(bytes));
  std::array<std::byte, 16> into{};
  int turns = 0;
  std::size_t given = 0;
  for (; given == 0 && turns < 1000; ++turns) {
    striped.link->service(EPOLLIN);
    ASSERT_TRUE(striped.link->readable());
    given = striped.link->read(into).or_throw();
  }
  EXPECT_EQ(given, 1u);
  EXPECT_EQ(into.front(), std::byte{42});
  EXPECT_EQ(turns, 2) << "others have a turn between";
}

}  // namespace
}  // namespace stretto::transport::tcp
