// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/store_server.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <deque>
#include <thread>
#include <vector>

#include "stretto/base/random.h"
#include "stretto/bootstrap/handshake_machine.h"
#include "stretto/bootstrap/join_failure.h"
#include "stretto/bootstrap/socket.h"
#include "stretto/bootstrap/store_frame.h"
#include "stretto/bootstrap/tcp_store.h"
#include "tests/support/expect_contains.h"
#include "tests/support/on_threads.h"
#include "tests/support/soon.h"

namespace stretto::bootstrap {
namespace {

using std::chrono::milliseconds;

class StoreServerTest : public ::testing::Test {
 protected:
  void start(StoreServerOptions options = {}) {
    options.key = key_;
    server_ = StoreServer::start(options).or_throw();
  }
  std::unique_ptr<Store> client() { return connect_tcp_store(options(), soon()).or_throw(); }
  TcpStoreOptions options() const {
    return {.host = "127.0.0.1", .port = server_->port(), .key = key_, .self = {.rank = 1}};
  }
  FileDescriptor raw() { return connect_tcp("127.0.0.1", server_->port(), soon()).or_throw(); }
  // Makes a connection that has the key and can send what it likes.
  FileDescriptor authenticated() {
    FileDescriptor fd = raw();
    EXPECT_TRUE(handshake_as_client(fd.get(), key_, Purpose::store, {.rank = 2}, soon()).ok());
    return fd;
  }
  void expect_job_unharmed() {
    const auto one = client();
    EXPECT_TRUE(one->set("key", "value", soon()).ok());
    EXPECT_EQ(client()->get("key", soon()).or_throw(), "value");
  }

  JobKey key_ = JobKey::generate().or_throw();
  std::unique_ptr<StoreServer> server_;
};

void send_bytes(int fd, std::string_view bytes) {
  // The server may have hung up already.
  (void)write_all(fd, std::as_bytes(std::span(bytes)), soon()).ok();
}

bool closed(int fd) {
  std::array<std::byte, 4096> bytes;
  return read_exactly(fd, bytes, soon()).code() == StatusCode::peer_lost;
}

TEST_F(StoreServerTest, RefusesRandomBytesWithASentence) {
  start();
  ::testing::internal::CaptureStderr();
  const FileDescriptor stranger = raw();
  const int port = local_port(stranger.get()).or_throw();
  send_bytes(stranger.get(), "\x16\x03\x01 any bytes at all");
  EXPECT_TRUE(closed(stranger.get()));
  expect_job_unharmed();
  expect_contains(::testing::internal::GetCapturedStderr(),
                  "refused a connection from 127.0.0.1:" + std::to_string(port) +
                      ": not a stretto peer: the first bytes were 16 03 01");
}

TEST_F(StoreServerTest, SurvivesAnyBytesAndLogsAFewOfThem) {
  start();
  ::testing::internal::CaptureStderr();
  Random random(7);
  for (int i = 0; i < 50; ++i) {
    std::string bytes;
    for (std::uint64_t left = 1 + random.below(300); left > 0; --left) {
      bytes += static_cast<char>(random.next());
    }
    if (i % 2 == 0) bytes.replace(0, 8, "stretto\n");
    const FileDescriptor stranger = raw();
    send_bytes(stranger.get(), bytes);
  }
  expect_job_unharmed();
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 20);
}

TEST_F(StoreServerTest, SilentVisitorsHoldUpNobodyAndAreClosed) {
  start({.handshake_timeout = milliseconds(100), .max_handshakes = 4});
  ::testing::internal::CaptureStderr();
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 10; ++i) silent.push_back(raw());
  expect_job_unharmed();
  for (const FileDescriptor& fd : silent) EXPECT_TRUE(closed(fd.get()));
  const std::string text = ::testing::internal::GetCapturedStderr();
  expect_contains(text, "too many connections");
  expect_contains(text, "sent 0 of 128 bytes of the handshake in time");
}

TEST_F(StoreServerTest, ClosesAClientThatSendsNonsense) {
  start();
  ::testing::internal::CaptureStderr();
  const std::string good = encode_store_request({.operation = StoreOperation::get, .key = "k"});
  const auto with = [&](std::size_t at, std::string_view bytes) {
    return std::string(good).replace(at, bytes.size(), bytes);
  };
  for (const std::string& head :
       {with(0, {"\0", 1}), with(0, "\x0b"),                            // No such operation.
        with(1, "\x01"), with(2, {"\0\0", 2}),                          // No key.
        with(2, "\xff\xff"),                                            // A long key.
        with(0, {"\x01\0\x01\0\xff\xff\xff\xff", 8}), with(4, "\x01"),  // get with a value,
        with(8, "\x01"),                                                // an expected value,
        with(19, "\x80")}) {                                            // an amount.
    const FileDescriptor fd = authenticated();
    send_bytes(fd.get(), head);
    EXPECT_TRUE(closed(fd.get()));
  }
  expect_job_unharmed();
  expect_contains(::testing::internal::GetCapturedStderr(), "no such store request");
}

TEST_F(StoreServerTest, AnswersRequestsThatComeInOnePieceOrByteByByte) {
  start();
  const FileDescriptor fd = authenticated();
  const std::string requests =
      encode_store_request({.operation = StoreOperation::get, .key = "b"}) +
      encode_store_request({.operation = StoreOperation::set, .key = "a", .value = "1"}) +
      encode_store_request({.operation = StoreOperation::get, .key = "a"});
  for (char byte : requests.substr(0, 9)) send_bytes(fd.get(), {&byte, 1});
  send_bytes(fd.get(), requests.substr(9));
  std::this_thread::sleep_for(milliseconds(10));
  EXPECT_TRUE(client()->set("b", "2", soon()).ok());
  const std::string replies = encode_store_reply(StoreReply{.value = "2"}) +
                              encode_store_reply(StoreReply{}) +
                              encode_store_reply(StoreReply{.value = "1"});
  std::string received(replies.size(), '\0');
  ASSERT_TRUE(read_exactly(fd.get(), std::as_writable_bytes(std::span(received)), soon()).ok());
  EXPECT_EQ(received, replies);
}

TEST_F(StoreServerTest, RefusesASetBeyondItsCapacityAndKeepsTheRest) {
  // There is room for a value, the request that brings it, and little else.
  start({.max_total_bytes = 160 * 1024});
  const auto store = client();
  const auto value = [](int kibibytes, char letter) {
    return std::string(static_cast<std::size_t>(kibibytes) * 1024, letter);
  };
  EXPECT_TRUE(store->set("a", value(60, 'x'), soon()).ok());
  EXPECT_TRUE(store->set("b", value(25, 'x'), soon()).ok());
  EXPECT_TRUE(store->set("c", value(25, 'x'), soon()).ok());
  const Status full = store->set("d", value(25, 'x'), soon());
  expect_failure(full, StatusCode::refused, "the store is full");
  EXPECT_TRUE(store->set("c", value(25, 'y'), soon()).ok()) << "replacing frees the old value";
  EXPECT_EQ(store->get("c", soon()).or_throw(), value(25, 'y'));
  EXPECT_TRUE(store->delete_key("b", soon()).or_throw());
  EXPECT_TRUE(store->append("d", value(25, 'y'), soon()).ok()) << "deleting frees, too";
}

TEST_F(StoreServerTest, CountsSmallEntriesForWhatTheyTake) {
  start({.max_total_bytes = 100 * 1024});
  const auto store = client();
  int entries = 0;
  while (entries < 10000 && store->set(std::to_string(entries), "", soon()).ok()) ++entries;
  EXPECT_GT(entries, 100);
  EXPECT_LT(entries, 1000) << "an entry takes more than a hundred bytes, however short it is";
}

TEST_F(StoreServerTest, CountsUnfinishedRequestsAndRepliesThatNobodyTakes) {
  start({.max_total_bytes = 1024 * 1024});
  ::testing::internal::CaptureStderr();
  const std::string whole = encode_store_request(
      {.operation = StoreOperation::set, .key = "k", .value = std::string(kMaxValueBytes, 'x')});
  std::vector<FileDescriptor> clients;
  for (int i = 0; i < 40; ++i) {
    clients.push_back(authenticated());
    send_bytes(clients.back().get(), whole.substr(0, whole.size() - 1));
  }
  // The last byte shows which clients are served. The others have been closed.
  int served = 0;
  for (const FileDescriptor& fd : clients) {
    send_bytes(fd.get(), whole.substr(whole.size() - 1));
    std::array<std::byte, kStoreReplyHeadBytes> reply{};
    served += read_exactly(fd.get(), reply, soon()).ok() ? 1 : 0;
  }
  EXPECT_LE(served, 16);
  EXPECT_GE(served, 4);
  clients.clear();
  expect_job_unharmed();
  expect_contains(::testing::internal::GetCapturedStderr(), "the store is full");
  // A client that asks for much and reads nothing is closed, too.
  ::testing::internal::CaptureStderr();
  const auto store = client();
  ASSERT_TRUE(store->set("k", std::string(kMaxValueBytes, 'x'), soon()).ok());
  const std::string get = encode_store_request({.operation = StoreOperation::get, .key = "k"});
  for (int i = 0; i < 40; ++i) {
    clients.push_back(authenticated());
    for (int times = 0; times < 100; ++times) send_bytes(clients.back().get(), get);
  }
  // The server has looked at each client when it has begun to reply, or has closed the connection.
  for (const FileDescriptor& fd : clients) {
    std::array<std::byte, 1> begin{};
    (void)read_exactly(fd.get(), begin, soon()).ok();
  }
  // Sixteen replies would fill the store's memory, and `store` has a connection, too.
  EXPECT_TRUE(comes_true([&] { return server_->client_count() <= 16; }));
  clients.clear();
  expect_job_unharmed();
  expect_contains(::testing::internal::GetCapturedStderr(), "the store is full");
}

TEST_F(StoreServerTest, AFloodDoesNotPushOutWhoHasShownTheKey) {
  start({.max_handshakes = 4});
  ::testing::internal::CaptureStderr();
  // This rank is in the middle of its handshake: it has sent its hello.
  auto slow =
      HandshakeMachine::start(HandshakeRole::client, key_, Purpose::store, {.rank = 3}).or_throw();
  const FileDescriptor fd = raw();
  ASSERT_TRUE(write_all(fd.get(), slow.take_output(), soon()).ok());
  std::array<std::byte, kHelloBytes> hello{};
  ASSERT_TRUE(read_exactly(fd.get(), hello, soon()).ok());
  std::vector<FileDescriptor> flood;
  for (int i = 0; i < 50; ++i) flood.push_back(raw());
  ASSERT_TRUE(slow.receive(hello).ok());
  ASSERT_TRUE(write_all(fd.get(), slow.take_output(), soon()).ok());
  std::array<std::byte, kTagBytes> acceptance{};
  ASSERT_TRUE(read_exactly(fd.get(), acceptance, soon()).ok());
  EXPECT_TRUE(slow.receive(acceptance).ok() && slow.done());
  (void)::testing::internal::GetCapturedStderr();
}

TEST_F(StoreServerTest, RanksComeInWhileAFloodGoesOn) {
  start({.max_handshakes = 8});
  ::testing::internal::CaptureStderr();
  std::atomic<bool> over = false;
  std::thread flood([&] {
    std::deque<FileDescriptor> held;
    while (!over) {
      held.push_back(raw());
      if (held.size() > 200) held.pop_front();
    }
  });
  for (int i = 0; i < 20; ++i) {
    const auto store = connect_tcp_store(options(), soon());
    EXPECT_TRUE(store.ok()) << store.status().message();
  }
  over = true;
  flood.join();
  (void)::testing::internal::GetCapturedStderr();
}

TEST_F(StoreServerTest, ARankOfThisUserWithAnotherKeyEndsTheJoin) {
  start();
  ::testing::internal::CaptureStderr();
  const auto store = client();  // Rank 1.
  TcpStoreOptions other = options();
  other.key = JobKey::generate().or_throw();
  const auto come_as = [&](int rank) {
    other.self.rank = rank;
    EXPECT_EQ(connect_tcp_store(other, soon()).status().code(), StatusCode::refused);
    const std::array key = {std::string(kJoinFailureKey)};
    return store->check(key, soon()).or_throw();
  };
  const std::array hint = {std::string(kRefusedPeerKey)};
  EXPECT_FALSE(come_as(-1)) << "no rank";
  EXPECT_FALSE(store->check(hint, soon()).or_throw()) << "no rank is missing for that";
  EXPECT_FALSE(come_as(1)) << "rank 1 is here: this is another job's";
  EXPECT_TRUE(store->check(hint, soon()).or_throw());
  EXPECT_TRUE(comes_true([&] { return come_as(4); })) << "lookups are some time apart";
  const Status failure = decode_join_failure(store->get(kJoinFailureKey, soon()).or_throw());
  EXPECT_EQ(failure.rank(), Rank(4));
  expect_failure(failure, StatusCode::refused,
                 "a peer that calls itself rank 4 does not hold this job's key");
  expect_contains(::testing::internal::GetCapturedStderr(), "rank 1 does not hold this job's key");
}

TEST_F(StoreServerTest, ARankOfAnotherVersionEndsTheJoin) {
  start();
  ::testing::internal::CaptureStderr();
  TcpStoreOptions other = options();
  other.self = {.rank = 4, .protocol_version = 77};
  expect_failure(
      connect_tcp_store(other, soon()).status(), StatusCode::refused,
      fmt::format("the launcher speaks protocol {} (build 0.1.0), this rank", kProtocolVersion));
  const Status failure = decode_join_failure(client()->get(kJoinFailureKey, soon()).or_throw());
  expect_contains(failure.message(), "rank 4 speaks protocol 77");
  expect_contains(::testing::internal::GetCapturedStderr(), "rank 4 speaks protocol 77");
}

TEST_F(StoreServerTest, ExecutesTheWillsOfThoseWhoAreGone) {
  start();
  const auto store = client();
  auto watch = store->watch("news", {"one is gone", "all well"}, soon()).or_throw();
  const auto other = store->watch("news", {"other is gone", "all well"}, soon()).or_throw();
  EXPECT_FALSE(other->look().or_throw());
  watch.reset();
  EXPECT_EQ(store->get("news", soon()).or_throw(), "one is gone");
  EXPECT_TRUE(comes_true([&] { return other->look().or_throw() == "one is gone"; }));
  watch = store->watch("later", {"gone", "all well"}, soon()).or_throw();
  EXPECT_TRUE(store->set("all well", "", soon()).ok());
  watch.reset();
  EXPECT_EQ(store->get("later", Deadline::after(milliseconds(50))).status().code(),
            StatusCode::timeout);
}

TEST_F(StoreServerTest, ClientsLearnThatTheServerHasEnded) {
  start();
  const auto store = client();
  std::thread end([&] {
    std::this_thread::sleep_for(milliseconds(20));
    server_.reset();
  });
  const auto value = store->get("never", soon());
  EXPECT_EQ(value.status().code(), StatusCode::peer_lost);
  end.join();
}

TEST_F(StoreServerTest, CountsItsClients) {
  start();
  EXPECT_EQ(server_->client_count(), 0u);
  auto one = client();
  const auto other = client();
  EXPECT_TRUE(comes_true([&] { return server_->client_count() == 2; }));
  EXPECT_EQ(server_->will_count(), 0u);
  auto watch = one->watch("left", {.value = "1", .revoked_by = ""}, soon()).or_throw();
  EXPECT_EQ(server_->will_count(), 1u);
  watch.reset();
  EXPECT_TRUE(comes_true([&] { return server_->will_count() == 0; }));
  one.reset();
  EXPECT_TRUE(comes_true([&] { return server_->client_count() == 1; }));
}

TEST_F(StoreServerTest, ServesManyClientsAtOnce) {
  start();
  on_threads(16, [&](int rank) {
    const auto store = client();
    ASSERT_TRUE(store->set(std::to_string(rank), std::to_string(rank * rank), soon()).ok());
    for (int peer = 0; peer < 16; ++peer) {
      EXPECT_EQ(store->get(std::to_string(peer), soon()).or_throw(), std::to_string(peer * peer));
    }
  });
}

TEST(StoreServer, SaysWhyItCannotListen) {
  const auto first = StoreServer::start({.key = JobKey::generate().or_throw()}).or_throw();
  const Status second =
      StoreServer::start({.port = first->port(), .key = JobKey::generate().or_throw()}).status();
  expect_failure(second, StatusCode::system, "the store cannot listen: binding 127.0.0.1:");
}

}  // namespace
}  // namespace stretto::bootstrap
