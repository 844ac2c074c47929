// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/acceptor.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <span>
#include <thread>
#include <vector>

#include "stretto/bootstrap/authenticating_listener.h"
#include "stretto/bootstrap/handshake.h"
#include "stretto/bootstrap/handshake_machine.h"
#include "stretto/bootstrap/peer_user.h"
#include "stretto/bootstrap/socket.h"
#include "tests/support/expect_contains.h"
#include "tests/support/in_child.h"
#include "tests/support/shortage.h"
#include "tests/support/soon.h"

namespace stretto::bootstrap {
namespace {

class AcceptorTest : public ::testing::Test {
 protected:
  std::unique_ptr<Acceptor> start(std::set<int> expected) {
    auto listener =
        AuthenticatingListener::create({.listener = listen_unix_abstract(name_).or_throw(),
                                        .key = key_,
                                        .purpose = Purpose::mesh_unix,
                                        .self = {.rank = 0}});
    return Acceptor::start(std::move(listener).or_throw(), std::move(expected)).or_throw();
  }
  FileDescriptor visit() const { return connect_unix_abstract(name_, soon()).or_throw(); }
  // Connects as a rank that tries until it is let in.
  Status join_as(int rank, const JobKey& key) const {
    return connect_and_greet([&] { return connect_unix_abstract(name_, soon()); },
                             [&](int fd) {
                               return handshake_as_client(fd, key, Purpose::mesh_unix,
                                                          {.rank = rank}, soon())
                                   .status();
                             },
                             soon())
        .status();
  }

  const JobKey key_ = JobKey::generate().or_throw();
  const std::string name_ = "stretto-test-" + key_.hexadecimal().substr(0, 16);
};

TEST_F(AcceptorTest, LetsARankInPastManyWhoSayRubbishOrNothing) {
  ::testing::internal::CaptureStderr();
  const auto acceptor = start({1});
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 300; ++i) {
    silent.push_back(visit());
    const FileDescriptor rubbish = visit();
    (void)write_all(rubbish.get(), std::as_bytes(std::span("GET / HTTP/1.1")), soon()).ok();
  }
  EXPECT_TRUE(join_as(1, key_).ok());
  EXPECT_TRUE(acceptor->take(1, soon()).ok());
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 20) << "they must not fill the log";
}

TEST_F(AcceptorTest, EndsAtOnceThoughSomebodyIsSilent) {
  const TimePoint begin = Clock::now();
  {
    const auto acceptor = start({1});
    const FileDescriptor silent = visit();
    EXPECT_EQ(join_as(1, JobKey::generate().or_throw()).code(), StatusCode::refused);
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
}

TEST_F(AcceptorTest, WaitsNoLongerThanThereIsAPoint) {
  const auto acceptor = start({1});
  const WaitLimit limit(soon(), [] { return Status(StatusCode::aborted, "rank 2 has failed"); });
  EXPECT_EQ(acceptor->take(1, limit).status().message(), "rank 2 has failed");
}

TEST_F(AcceptorTest, OneDescriptorIsEnoughForOneRank) {
  const auto acceptor = start({1});
  // One is for the rank, which this process plays, and one is for the acceptor.
  const stretto::testing::FewDescriptors few(2);
  const FileDescriptor rank = visit();
  // Meanwhile the acceptor accepts the connection. It must not close it for the next visitor.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_TRUE(handshake_as_client(rank.get(), key_, Purpose::mesh_unix, {.rank = 1}, soon()).ok());
  EXPECT_TRUE(acceptor->take(1, soon()).ok());
}

TEST_F(AcceptorTest, AShortageThatLastsIsSaidOnceAndKnown) {
  ::testing::internal::CaptureStderr();
  const auto acceptor = start({1});
  const stretto::testing::FewDescriptors few(1);
  const FileDescriptor rank = visit();
  EXPECT_TRUE(comes_true([&] { return !acceptor->failure().ok(); }));
  expect_contains(acceptor->failure().message(),
                  "other ranks cannot connect to this one: accept: ");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

TEST_F(AcceptorTest, TurnsAwayProcessesOfOtherUsersUnread) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  ::testing::internal::CaptureStderr();
  const auto acceptor = start({1});
  const int code = stretto::testing::exit_code_in_child([&] {
    if (::setuid(65534) != 0) return 2;
    const Result<FileDescriptor> fd = connect_unix_abstract(name_, soon());
    std::byte byte;
    const Status end = fd.ok() ? read_exactly(fd.value().get(), {&byte, 1}, soon()) : fd.status();
    return end.code() == StatusCode::peer_lost ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(join_as(1, key_).ok());
  expect_contains(::testing::internal::GetCapturedStderr(), "it belongs to another user");
}

TEST(AuthenticatingListenerTest, WhoRepeatsAHelloHasNotShownTheKey) {
  ::testing::internal::CaptureStderr();
  const JobKey key = JobKey::generate().or_throw();
  FileDescriptor socket = listen_tcp("127.0.0.1", 0).or_throw();
  const int port = local_port(socket.get()).or_throw();
  const auto listener = AuthenticatingListener::create({.listener = std::move(socket),
                                                        .key = key,
                                                        .purpose = Purpose::store,
                                                        .self = {.rank = 0}})
                            .or_throw();
  const auto passes_for_shown = [&](Purpose purpose, const Identity& self) {
    auto overheard = HandshakeMachine::start(HandshakeRole::client, key, purpose, self).or_throw();
    const FileDescriptor visitor = connect_tcp("127.0.0.1", port, soon()).or_throw();
    EXPECT_TRUE(write_all(visitor.get(), overheard.take_output(), soon()).ok());
    // The tag proves nothing. The listener may have hung up before.
    (void)write_all(visitor.get(), std::array<std::byte, kTagBytes>{}, soon()).ok();
    std::vector<AuthenticatingListener::Refusal> refused;
    EXPECT_TRUE(comes_true([&] {
      refused = listener->serve().refused;
      return !refused.empty();
    }));
    return !refused.empty() && refused.front().holds_key;
  };
  EXPECT_FALSE(passes_for_shown(Purpose::store, {.rank = 4}));
  EXPECT_FALSE(passes_for_shown(Purpose::mesh_tcp, {.rank = 4})) << "of another connection";
  EXPECT_TRUE(passes_for_shown(Purpose::store, {.rank = 4, .protocol_version = 77}))
      << "another version has no other way to show it";
  (void)::testing::internal::GetCapturedStderr();
}

TEST(PeerUser, IsKnownOfConnectionsInsideTheHost) {
  const FileDescriptor listener = listen_tcp("127.0.0.1", 0).or_throw();
  FileDescriptor client =
      connect_tcp("127.0.0.1", local_port(listener.get()).or_throw(), soon()).or_throw();
  const FileDescriptor server = accept(listener.get(), soon()).or_throw();
  EXPECT_EQ(peer_user(server.get()), ::geteuid());
  EXPECT_TRUE(peer_is_trusted_user(server.get()));
  // A connection that nobody holds any more looks like root's.
  client.reset();
  EXPECT_FALSE(peer_user(server.get()));
  EXPECT_FALSE(peer_is_trusted_user(server.get()));
}

}  // namespace
}  // namespace stretto::bootstrap
