// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/packets/streams.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <memory>
#include <string>

namespace stretto::transport::packets {
namespace {

// A library that reports a packet when its first bytes have come, and the end of its receive when
// the test says so.
class SlowEngine final : public Engine {
 public:
  const char* library() const override { return "a slow library"; }
  const char* failure() const override { return failure_text.c_str(); }
  const char* failure(int) const override { return peer_failure_text.c_str(); }
  const char* address() const override { return ""; }
  void connect(const char* const*) override {}
  int send(int, const std::byte*, std::size_t count) override {
    sent_bytes += count;
    return 0;
  }
  bool progress() override { return false; }
  bool probe(int& peer, std::size_t& count) override {
    if (coming.empty()) return false;
    peer = coming.front().from;
    count = coming.front().count;
    return true;
  }
  int receive(std::byte* into) override {
    std::memset(into, coming.front().value, coming.front().count);
    coming.pop_front();
    return ++received;
  }
  // Sends are operation 0, receives are numbered from 1.
  bool has_ended(int operation) override {
    return operation == 0 ? sends_have_ended : operation <= here;
  }

  struct Packet {
    int from = 0;
    std::size_t count = 0;
    int value = 0;
  };
  std::deque<Packet> coming;
  int received = 0;
  int here = 0;  // How many received packets have all their bytes.
  std::size_t sent_bytes = 0;
  bool sends_have_ended = false;
  std::string failure_text;
  std::string peer_failure_text;
};

class PacketStreamsTest : public ::testing::Test {
 protected:
  PacketStreamsTest() {
    auto engine = std::make_unique<SlowEngine>();
    engine_ = engine.get();
    streams_ = std::make_unique<PacketStreams>(std::move(engine), 0, 3, 2);
  }

  // Ends all operations, because the library would keep the others for ever.
  ~PacketStreamsTest() override {
    engine_->sends_have_ended = true;
    engine_->here = engine_->received;
    streams_->progress();
  }

  std::size_t read(Rank peer, std::size_t bytes) {
    std::vector<std::byte> into(bytes);
    const Result<std::size_t> count = streams_->to(peer)->read(into);
    return count.ok() ? count.value() : 0;
  }

  SlowEngine* engine_ = nullptr;
  std::unique_ptr<PacketStreams> streams_;
};

TEST_F(PacketStreamsTest, APacketHasComeWithItsFirstBytesAndIsReadWithItsLast) {
  EXPECT_EQ(streams_->arrivals(1), 0u);
  EXPECT_TRUE(streams_->has_read(1, 0));
  engine_->coming = {{.from = 1, .count = 10, .value = 1}, {.from = 2, .count = 1, .value = 2}};
  streams_->progress();
  EXPECT_EQ(streams_->arrivals(1), 1u);
  EXPECT_EQ(streams_->arrivals(2), 1u);
  EXPECT_EQ(read(1, 10), 0u) << "not all of it is here";
  engine_->here = 2;
  streams_->progress();
  EXPECT_EQ(read(1, 9), 9u);
  EXPECT_FALSE(streams_->has_read(1, 1)) << "a byte of it is left";
  EXPECT_EQ(read(1, 9), 1u);
  EXPECT_TRUE(streams_->has_read(1, 1));
  EXPECT_FALSE(streams_->has_read(2, 1)) << "peers are counted by themselves";
  EXPECT_EQ(streams_->arrivals(1), 1u) << "also when it has been read";
  EXPECT_FALSE(streams_->has_read(1, 2));
}

TEST_F(PacketStreamsTest, NothingMoreIsReadOnceThePeerOrTheLibraryIsGone) {
  streams_->to(1)->disconnect();
  EXPECT_TRUE(streams_->has_read(1, 7));
  EXPECT_FALSE(streams_->has_read(2, 7));
  engine_->failure_text = "out of buffers";
  EXPECT_TRUE(streams_->has_read(2, 7));
  std::vector<std::byte> into(1);
  const Status status = streams_->to(2)->read(into).status();
  EXPECT_EQ(status.code(), StatusCode::system);
  EXPECT_EQ(status.message(), "a slow library: out of buffers");
}

TEST_F(PacketStreamsTest, SoManyPacketsAreUnderWayAndNoMore) {
  const std::vector<std::byte> bytes(5);
  const ConstByteSpan pieces[] = {bytes, bytes};
  const auto write = [&] { return streams_->to(1)->write(pieces).value(); };
  EXPECT_EQ(write(), 10u);
  EXPECT_EQ(write(), 10u);
  EXPECT_EQ(write(), 0u);
  EXPECT_TRUE(streams_->has_output(1));
  EXPECT_FALSE(streams_->has_output(2));
  engine_->sends_have_ended = true;
  streams_->progress();
  EXPECT_FALSE(streams_->has_output(1));
  EXPECT_EQ(write(), 10u);
  EXPECT_EQ(engine_->sent_bytes, 30u);
}

TEST_F(PacketStreamsTest, ALongPacketHasToBePushedUntilItHasGone) {
  const std::vector<std::byte> bytes(16 * 1024);
  const auto write = [&](std::size_t count) {
    const ConstByteSpan pieces[] = {std::span(bytes).first(count)};
    ASSERT_EQ(streams_->to(1)->write(pieces).value(), count);
  };
  write(10);
  EXPECT_TRUE(streams_->must_push()) << "the ranks may not be connected yet";
  engine_->sends_have_ended = true;
  streams_->progress();
  EXPECT_FALSE(streams_->must_push());
  engine_->sends_have_ended = false;
  write(10);
  EXPECT_FALSE(streams_->must_push()) << "what is short leaves alone";
  write(bytes.size());
  EXPECT_TRUE(streams_->must_push());
  streams_->progress();
  EXPECT_TRUE(streams_->must_push());
  engine_->sends_have_ended = true;
  streams_->progress();
  EXPECT_FALSE(streams_->must_push());
  engine_->sends_have_ended = false;
  write(bytes.size());
  streams_->to(1)->disconnect();
  streams_->progress();
  EXPECT_FALSE(streams_->must_push()) << "nobody is there any more";
}

TEST_F(PacketStreamsTest, APeerThatCannotBeReachedIsNotWaitedFor) {
  const std::vector<std::byte> bytes(5);
  const ConstByteSpan pieces[] = {bytes};
  ASSERT_TRUE(streams_->to(1)->write(pieces).ok());
  engine_->peer_failure_text = "endpoint timed out";
  streams_->progress();
  EXPECT_FALSE(streams_->has_output(1));
}

TEST_F(PacketStreamsTest, PacketsOfNobodyOrOfNoBytesEndAllStreams) {
  for (const SlowEngine::Packet packet :
       {SlowEngine::Packet{.from = 3, .count = 1}, SlowEngine::Packet{.from = -1, .count = 1},
        SlowEngine::Packet{.from = 0, .count = 1}, SlowEngine::Packet{.from = 1, .count = 0},
        SlowEngine::Packet{.from = 1, .count = 256 * 1024 + 1}}) {
    auto engine = std::make_unique<SlowEngine>();
    engine->coming = {packet};
    PacketStreams streams(std::move(engine), 0, 3);
    streams.progress();
    std::vector<std::byte> into(1);
    EXPECT_EQ(streams.to(2)->read(into).status().code(), StatusCode::protocol)
        << packet.count << " from " << packet.from;
  }
}

}  // namespace
}  // namespace stretto::transport::packets
