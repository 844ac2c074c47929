// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/host_listener.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <span>
#include <thread>
#include <vector>

#include "stretto/bootstrap/acceptor.h"
#include "stretto/bootstrap/peer_user.h"
#include "stretto/bootstrap/socket.h"
#include "stretto/bootstrap/tcp_links.h"
#include "tests/contract/process_resources.h"
#include "tests/support/expect_contains.h"
#include "tests/support/in_child.h"
#include "tests/support/send_with_descriptors.h"
#include "tests/support/shortage.h"
#include "tests/support/soon.h"

namespace stretto::bootstrap {
namespace {

const std::string kBindAddress = "127.0.0.1";

class HostListenerTest : public ::testing::Test {
 protected:
  static std::unique_ptr<HostListener> start(const JobKey& key) {
    auto links = tcp_links({});
    const auto listen = [links](const std::string& bind_address) {
      return links->listen(bind_address, soon());
    };
    return HostListener::start(
               {.ranks = {0, 1, 2}, .key = key, .self = {.rank = 0}, .listen = listen})
        .or_throw();
  }
  Result<Reception> enlist(int rank, const std::string& bind_address = kBindAddress) const {
    return register_at_host(listener_->name(), bind_address, key_, {.rank = rank, .target = 0},
                            soon());
  }
  // Makes a connection of `rank` that is to reach `target`.
  Result<FileDescriptor> reach(const std::string& address, int rank, int target) const {
    const HostPort to = parse_host_port(address).or_throw();
    FileDescriptor socket = connect_tcp(to.host, to.port, soon()).or_throw();
    const Status greeted = handshake_as_client(socket.get(), key_, Purpose::mesh_tcp,
                                               {.rank = rank, .target = target}, soon())
                               .status();
    if (!greeted.ok()) return greeted;
    return socket;
  }
  static std::unique_ptr<Acceptor> accept(Reception reception, std::set<int> ranks) {
    return Acceptor::start(std::move(reception.connections), std::move(ranks)).or_throw();
  }
  static void expect_connected(const FileDescriptor& one, const FileDescriptor& other) {
    std::byte sent{42};
    std::byte received{0};
    EXPECT_TRUE(write_all(one.get(), {&sent, 1}, soon()).ok());
    EXPECT_TRUE(read_exactly(other.get(), {&received, 1}, soon()).ok());
    EXPECT_EQ(received, sent);
  }
  // Expects that `target` is handed the connection that it expects from `rank`.
  void expect_reached(Reception reception, int rank, int target) {
    const std::string address = reception.address;
    const auto acceptor = accept(std::move(reception), {rank});
    const FileDescriptor there = reach(address, rank, target).or_throw();
    const FileDescriptor here = acceptor->take(rank, soon()).or_throw();
    expect_connected(there, here);
  }

  const JobKey key_ = JobKey::generate().or_throw();
  std::unique_ptr<HostListener> listener_ = start(key_);
};

TEST_F(HostListenerTest, HandsEachConnectionToTheRankThatItIsToReach) {
  Reception one = enlist(1).or_throw();
  Reception two = enlist(2).or_throw();
  EXPECT_EQ(one.address, two.address);
  const std::string address = one.address;
  const auto of_one = accept(std::move(one), {5, 6});
  const auto of_two = accept(std::move(two), {5, 6});
  const FileDescriptor five_to_two = reach(address, 5, 2).or_throw();
  const FileDescriptor six_to_one = reach(address, 6, 1).or_throw();
  const FileDescriptor five_to_one = reach(address, 5, 1).or_throw();
  expect_connected(five_to_two, of_two->take(5, soon()).or_throw());
  expect_connected(six_to_one, of_one->take(6, soon()).or_throw());
  expect_connected(five_to_one, of_one->take(5, soon()).or_throw());
  EXPECT_TRUE(listener_->failure().ok());
}

TEST_F(HostListenerTest, ListensForTheRanksOfItsHostAndForThoseThatHaveCome) {
  ::testing::internal::CaptureStderr();
  const Reception one = enlist(1).or_throw();
  const Status other = reach(one.address, 5, 3).status();
  expect_failure(other, StatusCode::refused,
                 "this rank 5 is to reach rank 3, but rank 0 listens there");
  const FileDescriptor early = reach(one.address, 5, 2).or_throw();
  std::byte byte;
  EXPECT_EQ(read_exactly(early.get(), {&byte, 1}, soon()).code(), StatusCode::peer_lost);
  EXPECT_FALSE(
      register_at_host(listener_->name(), kBindAddress, key_, {.rank = 3, .target = 0}, soon())
          .ok());
  const std::string text = ::testing::internal::GetCapturedStderr();
  expect_contains(text, "to rank 2, which is not there");
  expect_contains(text, "rank 3 is none of this host");
}

TEST_F(HostListenerTest, ARankThatEndsTakesNothingFromOthersAndMayComeAgain) {
  ::testing::internal::CaptureStderr();
  const std::string address = enlist(1).or_throw().address;  // Rank 1 leaves at once.
  expect_reached(enlist(2).or_throw(), 5, 2);
  const FileDescriptor in_vain = reach(address, 5, 1).or_throw();
  std::byte byte;
  EXPECT_EQ(read_exactly(in_vain.get(), {&byte, 1}, soon()).code(), StatusCode::peer_lost);
  expect_reached(enlist(1).or_throw(), 6, 1);
  (void)::testing::internal::GetCapturedStderr();
}

TEST_F(HostListenerTest, ItsEndIsTheEndOfWaiting) {
  const auto acceptor = accept(enlist(1).or_throw(), {5});
  listener_.reset();
  const Status failure = acceptor->take(5, soon()).status();
  EXPECT_EQ(failure.code(), StatusCode::peer_lost);
  EXPECT_EQ(failure.message(),
            "other ranks cannot connect to this one: the rank that listens for this host: it has "
            "closed its Unix socket");
}

TEST_F(HostListenerTest, AConnectionWaitsForARankThatLacksDescriptors) {
  ::testing::internal::CaptureStderr();
  const Reception one = enlist(1).or_throw();
  const FileDescriptor there = reach(one.address, 5, 1).or_throw();
  ConnectionSource& source = *one.connections;
  // Waits for the hand-over, which takes no descriptor of this rank.
  EXPECT_TRUE(wait_for(source.descriptor(), POLLIN, soon()).ok());
  {
    const stretto::testing::FewDescriptors none(0);
    EXPECT_TRUE(source.take().empty());
    EXPECT_FALSE(source.shortage().ok());
    EXPECT_EQ(source.descriptor(), -1) << "it is not to be asked again and again";
  }
  std::this_thread::sleep_for(source.time_until_due());
  const auto taken = source.take();
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken.front().peer.rank, 5);
  EXPECT_TRUE(source.shortage().ok());
  expect_connected(there, taken.front().fd);
  (void)::testing::internal::GetCapturedStderr();
}

TEST_F(HostListenerTest, SaysWhereItCannotListen) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(enlist(1, "192.0.2.1").status().message(), "it cannot listen at 192.0.2.1");
  EXPECT_EQ(enlist(1, std::string(508, '1')).status().code(), StatusCode::invalid_argument);
  expect_reached(enlist(1).or_throw(), 5, 1);
  (void)::testing::internal::GetCapturedStderr();
}

TEST_F(HostListenerTest, KeepsNoDescriptorThatItHasNotAskedFor) {
  const int before = transport::open_descriptors();
  {
    const FileDescriptor member = connect_to_own_user(listener_->name(), soon()).or_throw();
    (void)handshake_as_client(member.get(), key_, Purpose::host_listener, {.rank = 1, .target = 0},
                              soon())
        .or_throw();
    std::array<std::byte, 512> frame{};
    frame[3] = std::byte{0xff};  // No rank has a number below zero.
    const std::array<int, 2> sent{member.get(), member.get()};
    ASSERT_EQ(stretto::testing::send_with_descriptors(member.get(), frame, sent),
              std::ssize(frame));
    std::byte byte;
    EXPECT_EQ(read_exactly(member.get(), {&byte, 1}, soon()).code(), StatusCode::peer_lost);
  }
  EXPECT_EQ(transport::open_descriptors(), before);
}

// The rank is told at once, since the listener closes its connection unread.
TEST_F(HostListenerTest, ARankOfAnotherUserKnowsThatItMustListenItself) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const TimePoint begin = Clock::now();
  const int code = stretto::testing::exit_code_in_child([&] {
    if (::setuid(65534) != 0) return 2;
    const Status refused = enlist(1).status();
    return refused.code() == StatusCode::refused &&
                   refused.message().starts_with(
                       "it belongs to user 0, and this process to user 65534: start the ranks")
               ? 0
               : 1;
  });
  EXPECT_EQ(code, 0);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(4)) << "it does not try again and again";
}

TEST_F(HostListenerTest, HasOnePortInAllNetworks) {
  const Reception one = enlist(1, "127.0.0.1").or_throw();
  const Reception two = enlist(2, "127.0.0.2").or_throw();
  EXPECT_EQ(parse_host_port(one.address).or_throw().port,
            parse_host_port(two.address).or_throw().port);
}

}  // namespace
}  // namespace stretto::bootstrap
