// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/packets/streams.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>

#include <fmt/format.h>

namespace stretto::transport::packets {
namespace {

// Large enough that the engine's work for a packet does not count, small enough that copying one
// packet and sending another overlap.
constexpr std::size_t kPacketBytes = 256 * 1024;
// A packet that is longer than this may wait in the library until the peer has room for it, and for
// the library to be called once more; so may the first one to a peer, until they are connected.
constexpr std::size_t kLeavesAloneBytes = 8 * 1024;
// One turn must not last for ever.
constexpr int kArrivalsPerTurn = 64;
constexpr std::size_t kIdleMax = 64;
// Time for the control plane to report that a peer has died: it knows more than the engine does.
constexpr std::chrono::seconds kVerdictTime(1);

}  // namespace

class PacketStreams::Stream final : public Link {
 public:
  Stream(PacketStreams& streams, Rank peer) : streams_(&streams), peer_(peer) {}

  std::string_view name() const override { return "engine"; }
  bool readable() const override {
    return !failure().ok() || (!arrived_.empty() && arrived_.front().has_ended);
  }
  // The engine keeps the packets that it works on: it may never let them go.
  void disconnect() override { is_connected_ = false; }

  Result<std::size_t> write(std::span<const ConstByteSpan> pieces) override {
    STRETTO_RETURN_IF_ERROR(failure());
    if (!is_connected_ || sent_.size() >= streams_->packets_max_) return std::size_t{0};
    Packet packet{.bytes = streams_->take_buffer()};
    for (const ConstByteSpan piece : pieces) {
      const std::size_t step = std::min(piece.size(), kPacketBytes - packet.count);
      std::memcpy(packet.bytes.get() + packet.count, piece.data(), step);
      packet.count += step;
    }
    packet.operation = streams_->engine_->send(peer_.value(), packet.bytes.get(), packet.count);
    if (must_push(packet)) streams_->must_push_ = true;
    sent_.push_back(std::move(packet));
    return sent_.back().count;
  }

  Result<std::size_t> read(ByteSpan into) override {
    if (arrived_.empty() || !arrived_.front().has_ended) {
      STRETTO_RETURN_IF_ERROR(failure());
      return std::size_t{0};
    }
    Packet& packet = arrived_.front();
    const std::size_t step = std::min(into.size(), packet.count - packet.read);
    std::memcpy(into.data(), packet.bytes.get() + packet.read, step);
    packet.read += step;
    if (packet.read == packet.count) {
      streams_->give_back(packet);
      arrived_.pop_front();
      ++read_count_;
    }
    return step;
  }

  // Receives what the engine has just found.
  void receive(std::size_t count) {
    Packet packet{.bytes = streams_->take_buffer(), .count = count};
    packet.operation = streams_->engine_->receive(packet.bytes.get());
    arrived_.push_back(std::move(packet));
  }

  bool progress() {
    if (!verdict_ && *streams_->engine_->failure(peer_.value()) != '\0') {
      verdict_ = Deadline::after(kVerdictTime);
    }
    bool moved = false;
    const auto end = [&](Packet& packet) {
      if (packet.has_ended || !streams_->engine_->has_ended(packet.operation)) return;
      packet.has_ended = moved = true;
    };
    std::ranges::for_each(sent_, end);
    std::ranges::for_each(arrived_, end);
    for (; !sent_.empty() && sent_.front().has_ended; sent_.pop_front()) {
      streams_->give_back(sent_.front());
      is_reached_ = true;
    }
    return moved;
  }

  bool has_output() const { return is_connected_ && !verdict_ && !sent_.empty(); }
  bool must_push() const {
    return has_output() &&
           std::ranges::any_of(sent_, [this](const Packet& packet) { return must_push(packet); });
  }
  // Counts packets as soon as they are matched here, which is when they end at their sender.
  std::uint64_t arrivals() const { return read_count_ + arrived_.size(); }
  bool has_read(std::uint64_t arrivals) const { return !is_connected_ || read_count_ >= arrivals; }

  // Leaves to the engine, for ever, what it still reads or writes.
  void abandon() {
    for (auto* packets : {&sent_, &arrived_}) {
      for (Packet& packet : *packets) {
        if (!packet.has_ended) (void)packet.bytes.release();
      }
    }
  }

 private:
  bool must_push(const Packet& packet) const {
    return !packet.has_ended && (packet.count > kLeavesAloneBytes || !is_reached_);
  }
  Status failure() const {
    STRETTO_RETURN_IF_ERROR(streams_->failure());
    if (!verdict_ || !verdict_->passed()) return {};
    const Engine& engine = *streams_->engine_;
    return Status(StatusCode::system,
                  fmt::format("{} has lost its connection to rank {}: {}", engine.library(),
                              peer_.value(), engine.failure(peer_.value())),
                  peer_);
  }

  PacketStreams* streams_;
  Rank peer_;
  std::optional<Deadline> verdict_;  // Set when the engine cannot reach the peer.
  bool is_connected_ = true;
  bool is_reached_ = false;  // A packet has ended there.
  std::deque<Packet> sent_;
  std::deque<Packet> arrived_;
  std::uint64_t read_count_ = 0;
};

PacketStreams::PacketStreams(std::unique_ptr<Engine> engine, Rank self, int ranks,
                             std::size_t packets_max)
    : engine_(std::move(engine)), packets_max_(packets_max) {
  for (int r = 0; r < ranks; ++r) {
    streams_.push_back(self == r ? nullptr : std::make_unique<Stream>(*this, r));
  }
}

PacketStreams::~PacketStreams() {
  for (const auto& stream : streams_) {
    if (stream != nullptr) stream->abandon();
  }
}

Link* PacketStreams::to(Rank peer) { return streams_[peer].get(); }

bool PacketStreams::progress() {
  bool moved = engine_->progress();
  moved = take_arrivals() || moved;
  must_push_ = false;
  for (const auto& stream : streams_) {
    if (stream == nullptr || !failure().ok()) continue;
    moved = stream->progress() || moved;
    must_push_ = must_push_ || stream->must_push();
  }
  return moved;
}

bool PacketStreams::take_arrivals() {
  int peer = 0;
  std::size_t count = 0;
  int turn = 0;
  for (; turn < kArrivalsPerTurn && failure().ok() && engine_->probe(peer, count); ++turn) {
    const bool is_peer =
        peer >= 0 && static_cast<std::size_t>(peer) < streams_.size() && streams_[peer] != nullptr;
    if (!is_peer || count == 0 || count > kPacketBytes) {
      protocol_failure_ =
          status_of(StatusCode::protocol, "a packet of {} bytes came by {} from rank {}", count,
                    engine_->library(), peer);
      break;
    }
    streams_[peer]->receive(count);
  }
  return turn > 0;
}

bool PacketStreams::has_output(Rank peer) const {
  return failure().ok() && streams_[peer]->has_output();
}

std::uint64_t PacketStreams::arrivals(Rank peer) const { return streams_[peer]->arrivals(); }

bool PacketStreams::has_read(Rank peer, std::uint64_t arrivals) const {
  return !failure().ok() || streams_[peer]->has_read(arrivals);
}

Status PacketStreams::failure() const {
  if (!protocol_failure_.ok() || *engine_->failure() == '\0') return protocol_failure_;
  return status_of(StatusCode::system, "{}: {}", engine_->library(), engine_->failure());
}

std::unique_ptr<std::byte[]> PacketStreams::take_buffer() {
  if (idle_.empty()) return std::make_unique_for_overwrite<std::byte[]>(kPacketBytes);
  std::unique_ptr<std::byte[]> buffer = std::move(idle_.back());
  idle_.pop_back();
  return buffer;
}

void PacketStreams::give_back(Packet& packet) {
  if (idle_.size() < kIdleMax) idle_.push_back(std::move(packet.bytes));
}

}  // namespace stretto::transport::packets
