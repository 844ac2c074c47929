// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/store_server.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include "stretto/base/random.h"
#include "stretto/bootstrap/socket.h"
#include "stretto/bootstrap/store_frame.h"
#include "stretto/bootstrap/tcp_store.h"

namespace stretto::bootstrap {
namespace {

using std::chrono::milliseconds;

Deadline soon() { return Deadline::after(std::chrono::seconds(10)); }

class StoreServerTest : public testing::Test {
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
  // A connection that has the key and can send what it likes.
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
  testing::internal::CaptureStderr();
  const FileDescriptor stranger = raw();
  const int port = local_port(stranger.get()).or_throw();
  send_bytes(stranger.get(), "\x16\x03\x01 any bytes at all");
  EXPECT_TRUE(closed(stranger.get()));
  expect_job_unharmed();
  EXPECT_PRED_FORMAT2(testing::IsSubstring,
                      "refused a connection from 127.0.0.1:" + std::to_string(port) +
                          ": not a stretto peer: the first bytes were 16 03 01",
                      testing::internal::GetCapturedStderr());
}

TEST_F(StoreServerTest, SurvivesAnyBytesAndLogsAFewOfThem) {
  start();
  testing::internal::CaptureStderr();
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
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 20);
}

TEST_F(StoreServerTest, RefusesAnotherKeyAndAnotherVersionOnBothSides) {
  start();
  testing::internal::CaptureStderr();
  TcpStoreOptions other_key = options();
  other_key.key = JobKey::generate().or_throw();
  const Status wrong_key = connect_tcp_store(other_key, soon()).status();
  EXPECT_EQ(wrong_key.code(), StatusCode::refused);
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "STRETTO_JOB_KEY", std::string(wrong_key.message()));
  TcpStoreOptions other_version = options();
  other_version.self.protocol_version = 77;
  const Status wrong_version = connect_tcp_store(other_version, soon()).status();
  EXPECT_EQ(wrong_version.code(), StatusCode::refused);
  EXPECT_PRED_FORMAT2(testing::IsSubstring,
                      "the launcher speaks protocol 1 (build 0.1.0), this rank",
                      std::string(wrong_version.message()));
  expect_job_unharmed();
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "rank 1 does not hold this job's key", text);
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "rank 1 speaks protocol 77", text);
}

TEST_F(StoreServerTest, SilentVisitorsHoldUpNobodyAndAreClosed) {
  start({.handshake_timeout = milliseconds(100), .max_handshakes = 4});
  testing::internal::CaptureStderr();
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 10; ++i) silent.push_back(raw());
  expect_job_unharmed();
  for (const FileDescriptor& fd : silent) EXPECT_TRUE(closed(fd.get()));
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "too many connections", text);
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "sent 0 of 128 bytes of the handshake in time", text);
}

TEST_F(StoreServerTest, ClosesAClientThatSendsNonsense) {
  start();
  testing::internal::CaptureStderr();
  const std::string good = encode_store_request({.operation = StoreOperation::get, .key = "k"});
  const auto with = [&](std::size_t at, std::string_view bytes) {
    return std::string(good).replace(at, bytes.size(), bytes);
  };
  for (const std::string& head :
       {with(0, {"\0", 1}), with(0, "\x0a"),                            // No such operation.
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
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "no such store request",
                      testing::internal::GetCapturedStderr());
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
  start({.max_total_bytes = 100});
  const auto store = client();
  EXPECT_TRUE(store->set("a", std::string(60, 'x'), soon()).ok());
  const Status full = store->set("b", std::string(60, 'x'), soon());
  EXPECT_EQ(full.code(), StatusCode::refused);
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "the store is full", std::string(full.message()));
  EXPECT_TRUE(store->set("a", std::string(90, 'y'), soon()).ok())
      << "replacing frees the old value";
  EXPECT_EQ(store->get("a", soon()).or_throw(), std::string(90, 'y'));
  EXPECT_TRUE(store->set("a", "y", soon()).ok());
  EXPECT_TRUE(store->set("b", std::string(90, 'x'), soon()).ok());
  EXPECT_EQ(store->append("a", std::string(60, 'y'), soon()).code(), StatusCode::refused);
  EXPECT_TRUE(store->delete_key("b", soon()).or_throw());
  EXPECT_TRUE(store->append("a", std::string(60, 'y'), soon()).ok()) << "deleting frees, too";
}

TEST_F(StoreServerTest, AWaiterThatLeavesIsForgotten) {
  start();
  const auto store = client();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(store->get("later", Deadline::after(milliseconds(5))).status().code(),
              StatusCode::timeout);
  }
  EXPECT_TRUE(store->set("later", "now", soon()).ok());
  EXPECT_EQ(store->get("later", soon()).or_throw(), "now");
  // A reply to a waiter that has left would now be taken for the next one's.
  EXPECT_TRUE(store->set("other", "x", soon()).ok());
  EXPECT_EQ(store->get("other", soon()).or_throw(), "x");
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
  EXPECT_EQ(server_->client_count(), 2u);
  one.reset();
  const Deadline deadline = soon();
  while (server_->client_count() == 2 && !deadline.passed()) std::this_thread::yield();
  EXPECT_EQ(server_->client_count(), 1u);
}

TEST_F(StoreServerTest, ServesManyClientsAtOnce) {
  start();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 16; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto store = client();
      ASSERT_TRUE(store->set(std::to_string(rank), std::to_string(rank * rank), soon()).ok());
      for (int peer = 0; peer < 16; ++peer) {
        EXPECT_EQ(store->get(std::to_string(peer), soon()).or_throw(), std::to_string(peer * peer));
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(StoreServer, SaysWhyItCannotListen) {
  const auto first = StoreServer::start({.key = JobKey::generate().or_throw()}).or_throw();
  const Status second =
      StoreServer::start({.port = first->port(), .key = JobKey::generate().or_throw()}).status();
  EXPECT_EQ(second.code(), StatusCode::system);
  EXPECT_PRED_FORMAT2(testing::IsSubstring,
                      "the store cannot listen: binding 127.0.0.1:", std::string(second.message()));
}

}  // namespace
}  // namespace stretto::bootstrap
