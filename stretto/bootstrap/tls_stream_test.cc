// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/tls_stream.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "stretto/bootstrap/socket.h"
#include "stretto/transport/endpoint.h"
#include "stretto/transport/tcp/link.h"
#include "tests/support/expect_contains.h"
#include "tests/support/socket_pairs.h"
#include "tests/support/soon.h"
#include "tests/support/tls_pairs.h"

namespace stretto::bootstrap {
namespace {

using stretto::testing::make_tcp_pair;
using stretto::testing::make_tls_pair;
using stretto::testing::make_unix_pair;
using stretto::testing::TlsPair;
using transport::tcp::ByteStream;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kRecordBytes = 16 * 1024;

TlsStream::Options options(Rank self, Rank peer, char digit_of_key = '7') {
  return {
      .key = JobKey::parse(std::string(64, digit_of_key)).or_throw(), .self = self, .peer = peer};
}

Bytes random_bytes(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(generator());
  return bytes;
}

bool contains(const Bytes& text, ConstByteSpan part) {
  return std::search(text.begin(), text.end(), part.begin(), part.end()) != text.end();
}

ByteStream::Moved write(ByteStream& stream, const Bytes& bytes) {
  const std::array<ConstByteSpan, 1> piece{bytes};
  return stream.write(piece);
}

void send_raw(const ByteStream& stream, ConstByteSpan bytes) {
  write_all(stream.socket(), bytes, soon()).or_throw();
}

// Reads until the stream has something else to tell than bytes, and returns this.
ByteStream::Moved read_to_end(ByteStream& stream, Bytes* into = nullptr) {
  std::array<std::byte, 5000> buffer;
  while (true) {
    ByteStream::Moved moved = stream.read(buffer);
    if (into != nullptr) {
      into->insert(into->end(), buffer.begin(), buffer.begin() + static_cast<long>(moved.bytes));
    }
    if (moved.bytes > 0) continue;
    if (moved.error_number != EAGAIN) return moved;
    pollfd waiting{.fd = stream.socket(), .events = POLLIN, .revents = 0};
    if (::poll(&waiting, 1, 10'000) != 1) return moved;
  }
}

// Writes and reads in turns until all has arrived. Pieces begin anew with what was not taken.
void expect_carries(ByteStream& from, ByteStream& to, const Bytes& sent, unsigned seed) {
  std::mt19937 generator(seed);
  Bytes arrived;
  std::size_t taken = 0;
  Bytes buffer(3 * kRecordBytes);
  while (arrived.size() < sent.size()) {
    std::vector<ConstByteSpan> pieces;
    for (std::size_t at = taken; at < sent.size() && pieces.size() < 16;) {
      const std::size_t bytes = std::min(sent.size() - at, std::size_t{1} << (generator() % 18));
      pieces.push_back(ConstByteSpan(sent).subspan(at, bytes));
      at += bytes;
    }
    const ByteStream::Moved written = from.write(pieces);
    ASSERT_TRUE(written.violation.ok()) << written.violation.message();
    ASSERT_TRUE(written.error_number == 0 || written.error_number == EAGAIN);
    taken += written.bytes;
    const ByteStream::Moved given =
        to.read(ByteSpan(buffer).first(1 + generator() % buffer.size()));
    ASSERT_TRUE(given.violation.ok()) << given.violation.message();
    ASSERT_TRUE(given.bytes > 0 || given.error_number == EAGAIN);
    arrived.insert(arrived.end(), buffer.begin(), buffer.begin() + static_cast<long>(given.bytes));
  }
  EXPECT_EQ(arrived, sent);
}

TEST(TlsStream, CarriesBytesAsTheyWereWritten) {
  for (const int buffer_bytes : {0, 8 * 1024}) {
    TlsPair pair = make_tls_pair(make_tcp_pair(buffer_bytes), 1, 0);
    expect_carries(*pair.first, *pair.second, random_bytes(3'000'000, 1), 1);
    expect_carries(*pair.second, *pair.first, random_bytes(300'000, 2), 2);
  }
}

TEST(TlsStream, GoesOnWithNewKeysAgainAndAgain) {
  TlsPair pair = make_tls_pair(make_tcp_pair(8 * 1024), 1, 0, 2);
  expect_carries(*pair.first, *pair.second, random_bytes(2'000'000, 1), 1);
  expect_carries(*pair.second, *pair.first, random_bytes(200'000, 2), 2);
}

// Both sockets are full, and neither side may wait with reading until it has sent its new keys.
TEST(TlsStream, BothSidesTakeNewKeysWhileNeitherHasRoom) {
  TlsPair pair = make_tls_pair(make_tcp_pair(8 * 1024), 1, 0, 1);
  const std::array<TlsStream*, 2> both{pair.first.get(), pair.second.get()};
  const Bytes byte(1);
  for (int round = 0; round < 20; ++round) {
    std::array<std::size_t, 2> sent{}, given{};
    for (std::size_t side : {0, 1}) {
      while (write(*both[side], byte).bytes > 0) ++sent[side];
    }
    const Deadline until = soon();
    while (given[1] < sent[0] || given[0] < sent[1]) {
      ASSERT_FALSE(until.passed()) << given[1] << " of " << sent[0] << ", " << given[0] << " of "
                                   << sent[1] << " in round " << round;
      for (std::size_t side : {0, 1}) {
        Bytes room(64 * 1024);
        const ByteStream::Moved moved = both[side]->read(room);
        ASSERT_TRUE(moved.violation.ok()) << moved.violation.message();
        given[side] += moved.bytes;
      }
    }
    // The library has taken a byte that was refused, and sends it first.
    for (std::size_t side : {0, 1}) {
      while (both[side]->held_bytes() > 0) {
        ASSERT_FALSE(until.passed());
        if (write(*both[side], byte).bytes == 0) continue;
        Bytes room(1);
        while (both[1 - side]->read(room).bytes == 0) ASSERT_FALSE(until.passed());
        break;
      }
    }
  }
}

TEST(TlsStream, CountsWhatTheSocketHasNotTakenAsHeld) {
  TlsPair pair = make_tls_pair(make_tcp_pair(8 * 1024), 1, 0);
  const Bytes bytes = random_bytes(4'000'000, 3);
  const ByteStream::Moved moved = write(*pair.first, bytes);
  EXPECT_EQ(moved.error_number, EAGAIN);
  EXPECT_EQ(pair.first->held_bytes(), kRecordBytes);
  Bytes arrived(moved.bytes);
  ASSERT_LT(moved.bytes, bytes.size());
  // All bytes that count as taken can be read without another write.
  for (std::size_t at = 0; at < arrived.size();) {
    const ByteStream::Moved given = pair.second->read(ByteSpan(arrived).subspan(at));
    at += given.bytes;
    if (given.bytes > 0) continue;
    pollfd waiting{.fd = pair.second->socket(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&waiting, 1, 10'000), 1) << at;
  }
  EXPECT_TRUE(std::ranges::equal(arrived, ConstByteSpan(bytes).first(arrived.size())));
}

TEST(TlsStream, TakesAFewRecordsAtATime) {
  TlsPair pair = make_tls_pair(make_unix_pair(SOCK_STREAM | SOCK_NONBLOCK), 1, 0);
  const Bytes bytes(6 * kRecordBytes);
  const ByteStream::Moved moved = write(*pair.first, bytes);
  EXPECT_EQ(moved.bytes, 4 * kRecordBytes);
  EXPECT_EQ(moved.error_number, 0) << "there is room";
  EXPECT_EQ(write(*pair.first, Bytes(2 * kRecordBytes)).bytes, 2 * kRecordBytes);
}

TEST(TlsStream, DoesNotRaiseASignalWhenThePeerHasGone) {
  TlsPair pair = make_tls_pair(make_tcp_pair(), 1, 0);
  pair.second.reset();
  ByteStream::Moved moved;
  while (moved.error_number == 0) moved = write(*pair.first, Bytes(1000));
  EXPECT_TRUE(moved.error_number == EPIPE || moved.error_number == ECONNRESET);
}

// Passes bytes between two connections. It keeps what comes, and changes it if it is told to.
class Relay {
 public:
  using Change = std::function<void(Bytes&)>;

  Relay() : client_(make_tcp_pair()), server_(make_tcp_pair()) {
    thread_ = std::thread([this] { run(); });
  }
  ~Relay() {
    for (const FileDescriptor* end : {&client_.second, &server_.second}) {
      (void)::shutdown(end->get(), SHUT_RDWR);
    }
    thread_.join();
  }

  std::pair<FileDescriptor, FileDescriptor> ends() {
    return {std::move(client_.first), std::move(server_.first)};
  }
  // Changes what comes from the client, from now on.
  void change(Change change) {
    const std::lock_guard lock(mutex_);
    change_ = std::move(change);
  }
  Bytes seen() {
    const std::lock_guard lock(mutex_);
    return seen_;
  }

 private:
  void run() {
    std::array<pollfd, 2> ends{pollfd{client_.second.get(), POLLIN, 0},
                               pollfd{server_.second.get(), POLLIN, 0}};
    while (::poll(ends.data(), ends.size(), -1) > 0) {
      for (std::size_t i = 0; i < ends.size(); ++i) {
        if (ends[i].revents != 0 && !pass_on(ends[i].fd, ends[1 - i].fd, i == 0)) return;
      }
    }
  }

  bool pass_on(int from, int to, bool of_client) {
    Bytes bytes(64 * 1024);
    const ssize_t given = ::recv(from, bytes.data(), bytes.size(), 0);
    if (given <= 0) {
      (void)::shutdown(to, SHUT_RDWR);
      return false;
    }
    bytes.resize(static_cast<std::size_t>(given));
    {
      const std::lock_guard lock(mutex_);
      seen_.insert(seen_.end(), bytes.begin(), bytes.end());
      if (of_client && change_) change_(bytes);
    }
    return write_all(to, bytes, soon()).ok();
  }

  std::pair<FileDescriptor, FileDescriptor> client_;
  std::pair<FileDescriptor, FileDescriptor> server_;
  std::mutex mutex_;
  Bytes seen_;
  Change change_;
  std::thread thread_;
};

TEST(TlsStream, LeavesNothingOfWhatIsWrittenOnTheWire) {
  const Bytes secret = random_bytes(64, 5);
  const Bytes text = [&] {
    Bytes repeated;
    for (int i = 0; i < 1000; ++i) repeated.insert(repeated.end(), secret.begin(), secret.end());
    return repeated;
  }();
  Relay relay;
  TlsPair pair = make_tls_pair(relay.ends(), 1, 0);
  expect_carries(*pair.first, *pair.second, text, 4);
  EXPECT_GE(relay.seen().size(), text.size());
  EXPECT_FALSE(contains(relay.seen(), ConstByteSpan(secret).first(8)));
  // The client offers no way to use the secret without fresh keys: psk_key_exchange_modes has only
  // psk_dhe_ke (RFC 8446, 4.2.9).
  constexpr std::array kModes{std::byte{0}, std::byte{0x2d}, std::byte{0},
                              std::byte{2}, std::byte{1},    std::byte{1}};
  EXPECT_TRUE(contains(relay.seen(), kModes));
  // Without TLS, this test sees the secret.
  Relay plain;
  auto ends = plain.ends();
  transport::tcp::SocketStream from(std::move(ends.first));
  transport::tcp::SocketStream to(std::move(ends.second));
  (void)write(from, text);
  ASSERT_TRUE(wait_for(to.socket(), POLLIN, soon()).ok());
  EXPECT_TRUE(contains(plain.seen(), ConstByteSpan(secret).first(8)));
}

TEST(TlsStream, NoticesAChangedBit) {
  Relay relay;
  TlsPair pair = make_tls_pair(relay.ends(), 1, 0);
  relay.change([](Bytes& bytes) { bytes[bytes.size() / 2] ^= std::byte{1}; });
  const Bytes bytes(1000);
  ASSERT_EQ(write(*pair.first, bytes).bytes, bytes.size());
  const Status violation = read_to_end(*pair.second).violation;
  expect_failure(violation, StatusCode::protocol, "bad record mac");
  // The stream stays broken, and the other side learns of it.
  EXPECT_FALSE(read_to_end(*pair.second).violation.ok());
  EXPECT_FALSE(write(*pair.second, bytes).violation.ok());
  EXPECT_FALSE(read_to_end(*pair.first).violation.ok());
}

TEST(TlsStream, TakesNothingTwiceAndNothingOutOfOrder) {
  Relay relay;
  TlsPair pair = make_tls_pair(relay.ends(), 1, 0);
  relay.change([](Bytes& bytes) { bytes.insert(bytes.end(), bytes.begin(), bytes.end()); });
  const Bytes bytes(1000);
  ASSERT_EQ(write(*pair.first, bytes).bytes, bytes.size());
  Bytes arrived;
  EXPECT_EQ(read_to_end(*pair.second, &arrived).violation.code(), StatusCode::protocol);
  EXPECT_EQ(arrived, bytes);
}

TEST(TlsStream, EndsWithTheSocketAlsoInTheMiddleOfARecord) {
  for (const std::size_t kept : {std::size_t{0}, std::size_t{3}, std::size_t{500}}) {
    Relay relay;
    TlsPair pair = make_tls_pair(relay.ends(), 1, 0);
    relay.change([kept](Bytes& bytes) { bytes.resize(kept); });
    ASSERT_EQ(write(*pair.first, Bytes(1000)).bytes, 1000u);
    pair.first.reset();
    Bytes arrived;
    const ByteStream::Moved end = read_to_end(*pair.second, &arrived);
    EXPECT_TRUE(end.violation.ok()) << end.violation.message();
    EXPECT_EQ(end.error_number, 0);
    EXPECT_TRUE(arrived.empty());
  }
}

TEST(TlsStream, RefusesRecordsThatCannotBe) {
  const std::vector<Bytes> records = {
      {std::byte{23}, std::byte{3}, std::byte{3}, std::byte{0xff}, std::byte{0xff}},
      {std::byte{23}, std::byte{3}, std::byte{3}, std::byte{0}, std::byte{0}},
      {std::byte{23}, std::byte{3}, std::byte{3}, std::byte{0}, std::byte{1}, std::byte{7}},
      {std::byte{99}, std::byte{3}, std::byte{3}, std::byte{0}, std::byte{20}},
      Bytes(70'000, std::byte{0}),
  };
  for (const Bytes& record : records) {
    TlsPair pair = make_tls_pair(make_tcp_pair(), 1, 0);
    send_raw(*pair.first, record);
    EXPECT_EQ(read_to_end(*pair.second).violation.code(), StatusCode::protocol);
  }
}

// Runs each side in a thread of its own, as in two processes.
std::pair<Status, Status> shake(const TlsStream::Options& one, const TlsStream::Options& other) {
  auto sockets = make_tcp_pair();
  const auto run = [](FileDescriptor socket, const TlsStream::Options& side) {
    auto stream = TlsStream::create(std::move(socket), side).or_throw();
    TlsStream* const alone = stream.get();
    return finish_handshakes(std::span(&alone, 1), soon());
  };
  Status status;
  std::thread thread([&] { status = run(std::move(sockets.second), other); });
  const Status own = run(std::move(sockets.first), one);
  thread.join();
  return {own, status};
}

TEST(TlsHandshake, SucceedsBetweenAnyTwoRanksOfAJob) {
  const auto [first, second] = shake(options(300, 7), options(7, 300));
  EXPECT_TRUE(first.ok()) << first.message();
  EXPECT_TRUE(second.ok()) << second.message();
}

TEST(TlsHandshake, WithAnotherKeyIsRefusedAndNamesThePeer) {
  const auto [client, server] = shake(options(5, 2), options(2, 5, '8'));
  EXPECT_EQ(server.rank(), Rank(5));
  expect_failure(server, StatusCode::refused, "joining rank 5: TLS was not set up");
  expect_contains(server.message(), "STRETTO_JOB_KEY is not the same there");
  EXPECT_FALSE(client.ok());
  EXPECT_EQ(client.rank(), Rank(2));
}

// If somebody connects two ranks that did not mean each other, their secrets differ.
TEST(TlsHandshake, WithAnotherRankIsRefused) {
  EXPECT_EQ(shake(options(5, 2), options(2, 6)).second.code(), StatusCode::refused);
  EXPECT_EQ(shake(options(5, 2), options(3, 5)).second.code(), StatusCode::refused);
  // If both are clients, or both servers, a side's own words come back.
  EXPECT_FALSE(shake(options(5, 2), options(5, 2)).first.ok());
}

// Returns how the handshake of a side ends whose peer says `said`.
Status meets(Rank self, Rank peer, const Bytes& said, bool ends) {
  auto sockets = make_tcp_pair();
  write_all(sockets.second.get(), said, soon()).or_throw();
  if (ends) (void)::shutdown(sockets.second.get(), SHUT_WR);
  auto stream = TlsStream::create(std::move(sockets.first), options(self, peer)).or_throw();
  TlsStream* const alone = stream.get();
  return finish_handshakes(std::span(&alone, 1), Deadline::after(std::chrono::milliseconds(300)));
}

TEST(TlsHandshake, WithAStrangerIsRefused) {
  const std::string_view request = "GET / HTTP/1.1\r\n\r\n";
  const ConstByteSpan http = std::as_bytes(std::span(request));
  const std::vector<Bytes> sayings = {
      Bytes(http.begin(), http.end()),
      Bytes(100, std::byte{0}),
      random_bytes(70'000, 6),
      // A record of more bytes than there may be.
      {std::byte{22}, std::byte{3}, std::byte{1}, std::byte{0xff}, std::byte{0xff}, std::byte{1}},
      // A ClientHello of 16 MiB.
      {std::byte{22}, std::byte{3}, std::byte{1}, std::byte{0}, std::byte{4}, std::byte{1},
       std::byte{0xff}, std::byte{0xff}, std::byte{0xff}},
  };
  for (const auto& [self, peer] : {std::pair<Rank, Rank>(0, 1), std::pair<Rank, Rank>(1, 0)}) {
    for (const Bytes& said : sayings) {
      const Status status = meets(self, peer, said, false);
      EXPECT_EQ(status.code(), StatusCode::refused) << status.message();
      EXPECT_EQ(status.rank(), peer);
    }
  }
}

TEST(TlsHandshake, WithWhoSaysNothingEndsInTimeAndWithWhoLeavesAtOnce) {
  const Status silent = meets(0, 1, {}, false);
  EXPECT_EQ(silent.code(), StatusCode::timeout);
  EXPECT_EQ(silent.message(), "joining rank 1: TLS was not set up in time");
  const Status left = meets(0, 1, {}, true);
  EXPECT_EQ(left.code(), StatusCode::peer_lost);
  EXPECT_EQ(left.rank(), Rank(1));
}

TEST(TlsHandshake, WithWhoLeavesWithoutReadingItsFirstWordsSaysThatItIsGone) {
  auto sockets = make_tcp_pair();
  auto stream = TlsStream::create(std::move(sockets.first), options(1, 0)).or_throw();
  EXPECT_EQ(stream->advance().or_throw(), POLLIN);
  sockets.second.reset();
  TlsStream* const alone = stream.get();
  const Status left = finish_handshakes(std::span(&alone, 1), soon());
  EXPECT_EQ(left.code(), StatusCode::peer_lost) << left.message();
  EXPECT_EQ(left.rank(), Rank(0));
}

// The user is told the link and the rank.
TEST(TlsLink, AChangedBitIsToldOfTheLink) {
  using transport::Endpoint;
  Relay relay;
  TlsPair pair = make_tls_pair(relay.ends(), 1, 0);
  const auto endpoint = [](Rank rank, std::unique_ptr<TlsStream> stream) {
    Endpoint::Parts parts{.rank = rank};
    parts.links.resize(2);
    parts.links[rank == 0 ? 1 : 0] = std::make_unique<transport::tcp::TcpLink>(std::move(stream));
    return Endpoint::create(std::move(parts)).or_throw();
  };
  auto one = endpoint(1, std::move(pair.first));
  auto zero = endpoint(0, std::move(pair.second));
  relay.change([](Bytes& bytes) { bytes.back() ^= std::byte{0x80}; });
  one->inquire(0, 1, 1, {});
  Status lost;
  (void)comes_true([&] {
    zero->progress();
    lost = zero->peer_status(1).status;
    return !lost.ok();
  });
  expect_failure(lost, StatusCode::protocol,
                 "lost rank 1 (tcp with TLS): TLS ended the connection");
}

}  // namespace
}  // namespace stretto::bootstrap
