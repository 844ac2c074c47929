// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/handshake.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "stretto/bootstrap/handshake_machine.h"
#include "stretto/bootstrap/socket.h"
#include "tests/support/expect_contains.h"
#include "tests/support/socket_pairs.h"
#include "tests/support/soon.h"

namespace stretto::bootstrap {
namespace {

using std::chrono::milliseconds;
using stretto::testing::make_unix_pair;

JobKey key_of(char digit) { return JobKey::parse(std::string(64, digit)).or_throw(); }

struct Side {
  JobKey key = key_of('1');
  Purpose purpose = Purpose::mesh_tcp;
  Identity identity;
};

Side side(int rank) { return {.identity = {.rank = rank, .configuration = 7}}; }

// A server that has no other visitors.
Result<Identity> serve(int fd, const Side& self) {
  auto machine =
      HandshakeMachine::start(HandshakeRole::server, self.key, self.purpose, self.identity)
          .or_throw();
  STRETTO_RETURN_IF_ERROR(shake_hands(fd, machine, soon()));
  return machine.peer();
}

struct Outcome {
  Result<Identity> client;
  Result<Identity> server;
};

// Both sides close when they have failed, as callers do.
Outcome shake(const Side& client, const Side& server) {
  auto pair = make_unix_pair(SOCK_STREAM);  // The client's end, and the server's.
  auto answer = std::async(std::launch::async, [&] {
    auto result = serve(pair.second.get(), server);
    if (!result.ok()) pair.second.reset();
    return result;
  });
  auto result =
      handshake_as_client(pair.first.get(), client.key, client.purpose, client.identity, soon());
  if (!result.ok()) pair.first.reset();
  return {result, answer.get()};
}

void expect_refused(const Result<Identity>& result, const std::string& sentence) {
  ASSERT_FALSE(result.ok());
  expect_failure(result.status(), StatusCode::refused, sentence);
}

// What a peer does that is not stretto at all.
using Stranger = std::function<void(int fd)>;

Result<Identity> server_meets(const Stranger& stranger) {
  auto pair = make_unix_pair(SOCK_STREAM);
  std::thread thread([&] {
    stranger(pair.first.get());
    pair.first.reset();
  });
  const auto result = serve(pair.second.get(), side(0));
  pair.second.reset();
  thread.join();
  return result;
}

Result<Identity> client_meets(const Stranger& stranger, const WaitLimit& limit = soon()) {
  auto pair = make_unix_pair(SOCK_STREAM);
  std::thread thread([&] {
    stranger(pair.second.get());
    pair.second.reset();
  });
  const auto result = handshake_as_client(pair.first.get(), key_of('1'), Purpose::mesh_tcp,
                                          side(1).identity, limit);
  pair.first.reset();
  thread.join();
  return result;
}

void say(int fd, std::string_view text) {
  (void)write_all(fd, std::as_bytes(std::span(text)), soon()).ok();
}

HandshakeMachine machine_of(HandshakeRole role, int rank, char digit_of_key = '1') {
  return HandshakeMachine::start(role, key_of(digit_of_key), Purpose::mesh_tcp, side(rank).identity)
      .or_throw();
}

std::vector<std::byte> genuine_hello() {
  return machine_of(HandshakeRole::client, 1).take_output();
}

TEST(JobKey, IsWrittenAndReadAsHexadecimalDigits) {
  const JobKey key = JobKey::generate().or_throw();
  EXPECT_EQ(key.hexadecimal().size(), 64u);
  EXPECT_EQ(JobKey::parse(key.hexadecimal())->bytes(), key.bytes());
  EXPECT_NE(JobKey::generate()->bytes(), key.bytes());
  EXPECT_EQ(key_of('B').bytes(), key_of('b').bytes());
}

TEST(JobKey, RefusesOtherTextWithoutRepeatingIt) {
  const std::string as(65, 'a');
  std::string no_digit(64, 'a');
  no_digit.back() = 'x';
  for (const std::string_view text :
       {std::string_view(), std::string_view("abc"), std::string_view(as).substr(2),
        std::string_view(as), std::string_view(no_digit)}) {
    const auto key = JobKey::parse(text);
    ASSERT_FALSE(key.ok());
    expect_failure(key.status(), StatusCode::invalid_argument, "64 hexadecimal digits");
    EXPECT_TRUE(text.size() < 4 ||
                std::string(key.status().message()).find(text) == std::string::npos);
  }
}

TEST(JobKey, OfAGroupIsMadeOfTheJobsAndOfANonce) {
  const auto made = [](char job, char nonce) {
    return key_of(job).for_group(key_of(nonce)).hexadecimal();
  };
  // The HMAC-SHA256, by Python's hmac, of "stretto group key", a zero byte and the nonce.
  EXPECT_EQ(made('1', '2'), "df1c777f6c2573e42bd70aff9059e28320597c9c160b312fb1d56f7e9573e07d");
  EXPECT_NE(made('1', '2'), made('1', '3'));
  EXPECT_NE(made('1', '2'), made('2', '2'));
}

TEST(Handshake, TellsEachSideWhoTheOtherIs) {
  const Outcome outcome = shake(side(4), side(0));
  ASSERT_TRUE(outcome.client.ok()) << outcome.client.status().message();
  ASSERT_TRUE(outcome.server.ok()) << outcome.server.status().message();
  EXPECT_EQ(outcome.client.value().rank, 0);
  EXPECT_EQ(outcome.server.value().rank, 4);
  EXPECT_EQ(outcome.server.value().build, kBuild);
  EXPECT_EQ(outcome.server.value().configuration, 7u);
}

TEST(Handshake, ReadsNothingOfWhatFollows) {
  auto pair = make_unix_pair(SOCK_STREAM);
  std::thread client([&] {
    ASSERT_TRUE(
        handshake_as_client(pair.first.get(), key_of('1'), Purpose::store, side(1).identity, soon())
            .ok());
    say(pair.first.get(), "first");
  });
  Side launcher = side(-1);
  launcher.purpose = Purpose::store;
  ASSERT_TRUE(serve(pair.second.get(), launcher).ok());
  std::array<std::byte, 5> bytes{};
  ASSERT_TRUE(read_exactly(pair.second.get(), bytes, soon()).ok());
  EXPECT_EQ(std::memcmp(bytes.data(), "first", 5), 0);
  client.join();
}

TEST(Handshake, RefusesAnotherKeyOnBothSides) {
  Side stranger = side(3);
  stranger.key = key_of('2');
  const Outcome outcome = shake(stranger, side(0));
  expect_refused(outcome.server, "a peer that calls itself rank 3 does not hold this job's key");
  expect_refused(
      outcome.client,
      "rank 0 refuses the job key of this rank 3: STRETTO_JOB_KEY is not the same there");
}

TEST(Handshake, AServerWithAnotherKeyCannotPretend) {
  // The server answers although it cannot check the client's hello.
  const auto result = client_meets([](int fd) {
    auto hello = machine_of(HandshakeRole::client, 0, '2').take_output();
    hello[12] = std::byte{2};  // The role of a server.
    std::array<std::byte, kHelloBytes> ignored{};
    EXPECT_TRUE(read_exactly(fd, ignored, soon()).ok());
    EXPECT_TRUE(write_all(fd, hello, soon()).ok());
  });
  expect_refused(result, "does not hold this job's key");
}

TEST(Handshake, RefusesAnotherVersionOnBothSides) {
  Side old = side(4);
  old.identity.protocol_version = 3;
  old.identity.build = "1.2.0";
  Side current = side(0);
  current.identity.protocol_version = 4;
  current.identity.build = "1.3.1";
  const Outcome outcome = shake(old, current);
  expect_refused(outcome.server,
                 "rank 4 speaks protocol 3 (build 1.2.0), this rank 0 protocol 4 (build 1.3.1); "
                 "refusing to join");
  EXPECT_EQ(outcome.server.status().rank(), Rank(4));
  expect_refused(outcome.client,
                 "rank 0 speaks protocol 4 (build 1.3.1), this rank 4 protocol 3 (build 1.2.0); "
                 "refusing to join");
}

TEST(Handshake, NamesAClientWithoutARankAsSuch) {
  Side newer = side(-1);
  newer.identity.protocol_version = 77;
  const Outcome outcome = shake(newer, side(-1));
  expect_contains(outcome.server.status().message(), "a process without a rank speaks protocol 77");
  expect_contains(outcome.client.status().message(), "the launcher speaks protocol");
  expect_contains(outcome.client.status().message(), "this process protocol 77");
}

TEST(Handshake, RefusesOtherSettingsOnBothSides) {
  Side other = side(2);
  other.identity.configuration = 8;
  const Outcome outcome = shake(other, side(0));
  expect_refused(outcome.server,
                 "rank 2 joined with other settings than this rank 0: "
                 "STRETTO_ALGORITHM, STRETTO_TRANSPORT and STRETTO_BACKEND must be the same on all "
                 "ranks");
  expect_refused(outcome.client, "rank 0 joined with other settings than this rank 2: ");
}

TEST(Handshake, RefusesAnotherPurposeOnBothSides) {
  Side other = side(2);
  other.purpose = Purpose::store;
  const Outcome outcome = shake(other, side(0));
  expect_refused(outcome.server,
                 "rank 2 wants this connection for the store, this rank 0 for a tcp");
  expect_refused(outcome.client, "rank 0 wants this connection for a tcp link");
}

TEST(Handshake, RefusesAnotherRankThanTheWantedOneOnBothSides) {
  Side client = side(2);
  client.identity.target = 1;
  EXPECT_TRUE(shake(client, side(1)).client.ok());
  const Outcome outcome = shake(client, side(0));
  expect_refused(outcome.server,
                 "rank 2 is to reach rank 1, but this rank 0 listens there; refusing to join");
  expect_refused(outcome.client,
                 "this rank 2 is to reach rank 1, but rank 0 listens there; refusing to join");
}

TEST(Handshake, RefusesAStrangerAtItsFirstBytes) {
  // The stranger sends only these bytes: the server must not wait for a whole hello.
  const auto result = server_meets([](int fd) {
    say(fd, "GET ");
    std::byte end;
    EXPECT_FALSE(read_exactly(fd, {&end, 1}, soon()).ok()) << "a stranger gets no answer";
  });
  expect_refused(result, "not a stretto peer: the first bytes were 47 45 54 20 (\"GET \")");
}

TEST(Handshake, NamesAVisitorThatSaysNothing) {
  expect_refused(server_meets([](int) {}), "closed without a word");
}

TEST(Handshake, RefusesATruncatedHello) {
  const auto hello = genuine_hello();
  for (std::size_t length : {std::size_t{1}, std::size_t{8}, std::size_t{64}, hello.size() - 1}) {
    const auto result = server_meets([&](int fd) {
      EXPECT_TRUE(write_all(fd, ConstByteSpan(hello).first(length), soon()).ok());
    });
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), StatusCode::peer_lost);
    EXPECT_EQ(result.status().message(), "the peer closed the connection during the handshake");
  }
}

TEST(Handshake, DoesNotWaitForAPeerThatTrickles) {
  const auto hello = genuine_hello();
  const TimePoint start = Clock::now();
  const auto result = client_meets(
      [&](int fd) {
        for (std::byte byte : hello) {
          if (!write_all(fd, {&byte, 1}, soon()).ok()) return;
          std::this_thread::sleep_for(milliseconds(50));
        }
      },
      Deadline::after(milliseconds(100)));
  ASSERT_FALSE(result.ok());
  expect_failure(result.status(), StatusCode::timeout, "of 128 bytes of the handshake");
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(3)) << "it has 6 s to trickle";
}

TEST(Handshake, APeerThatEchoesIsRefusedInEitherRole) {
  for (const auto& [role, why] : {std::pair(1, "not a stretto server: a hello with role 1"),
                                  std::pair(2, "does not hold this job's key")}) {
    const auto result = client_meets([role = role](int fd) {
      std::array<std::byte, kHelloBytes> hello{};
      EXPECT_TRUE(read_exactly(fd, hello, soon()).ok());
      hello[12] = static_cast<std::byte>(role);
      EXPECT_TRUE(write_all(fd, hello, soon()).ok());
    });
    expect_refused(result, why);
  }
}

TEST(Handshake, ARepeatedHelloDoesNotPass) {
  // What an eavesdropper can replay: everything the client of an earlier handshake sent.
  auto client = machine_of(HandshakeRole::client, 1);
  auto server = machine_of(HandshakeRole::server, 0);
  const auto hello = client.take_output();
  ASSERT_TRUE(server.receive(hello).ok());
  ASSERT_TRUE(client.receive(server.take_output()).ok());
  const auto proof = client.take_output();
  const auto result = server_meets([&](int fd) {
    EXPECT_TRUE(write_all(fd, hello, soon()).ok());
    EXPECT_TRUE(write_all(fd, proof, soon()).ok());
  });
  expect_refused(result, "repeated somebody's hello");
}

TEST(Handshake, ABitThatFlipsAnywhereIsNoticed) {
  for (std::size_t at = 0; at < kHelloBytes; ++at) {
    auto hello = genuine_hello();
    hello[at] ^= std::byte{0x40};
    auto server = machine_of(HandshakeRole::server, 0);
    EXPECT_FALSE(server.receive(hello).ok()) << "byte " << at;
    EXPECT_EQ(server.wanted_bytes(), 0u);
  }
}

TEST(Handshake, AStrangersNameCannotSteerATerminal) {
  auto hello = genuine_hello();
  hello[8] = std::byte{99};     // Another version, so that the build name is printed.
  hello[32] = std::byte{0x1b};  // Its first character: escape.
  const Status status = machine_of(HandshakeRole::server, 0).receive(hello);
  expect_contains(status.message(), "protocol 99 (build ?.1.0)");
}

TEST(Handshake, RefusesToSendAnIdentityThatDoesNotFit) {
  auto pair = make_unix_pair(SOCK_STREAM);
  const auto result = handshake_as_client(pair.first.get(), key_of('1'), Purpose::store,
                                          {.build = std::string(33, 'b')}, soon());
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace stretto::bootstrap
