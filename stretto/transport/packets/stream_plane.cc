// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/packets/stream_plane.h"

#include <memory>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "stretto/transport/frame_messages.h"
#include "stretto/transport/frame_stream.h"

namespace stretto::transport::packets {
namespace {

// One peer that sends without end must not keep the others waiting.
constexpr int kReadsPerTurn = 16;
// Turns in which to take what a peer sent before its end, whatever others send meanwhile.
constexpr int kLastTurns = 64;

}  // namespace

// The stream to and from one peer, with its frames and messages.
class StreamPlane::Way final : public PeerPlane, private FrameReader::Sink {
 public:
  Way(Rank self, Rank peer, PacketStreams& streams)
      : peer_(peer), streams_(streams), stream_(streams.to(peer)), messages_(self, peer, output_) {}

  bool has_output() const override {
    return (failure_.ok() && !output_.empty()) || streams_.has_output(peer_);
  }
  bool has_arrived(const MessageKey& key) const override { return messages_.has_arrived(key); }
  std::optional<UnexpectedMessage> find_conflict(
      std::uint64_t group, std::uint32_t sequence,
      const OperationDescriptor& operation) const override {
    return messages_.find_conflict(group, sequence, operation);
  }
  std::uint64_t arrivals() const override { return streams_.arrivals(peer_); }
  bool has_read(std::uint64_t arrivals) const override {
    return !failure_.ok() || streams_.has_read(peer_, arrivals);
  }

  void send(Request& request) override {
    if (!failure_.ok()) return complete(request, failure_);
    messages_.send(request);
    flush();
  }
  void recv(Request& request) override {
    const bool can_come = failure_.ok() || messages_.has_arrived(request.key);
    if (!can_come) return complete(request, failure_);
    messages_.recv(request);
    flush();
  }
  void cancel(std::uint64_t group, const Status& reason) override {
    if (closed_.erase(group) == 0) cancelled_.insert(group);
    if (messages_.fills(group)) reader_.drop_payload();
    messages_.cancel(group, reason);
  }
  void close(std::uint64_t group) override {
    if (cancelled_.erase(group) == 0) closed_.insert(group);
  }
  std::size_t half_closed() const override { return cancelled_.size() + closed_.size(); }
  // Keeps the messages that have come until now.
  void lose(const Status& reason) override {
    for (int turn = 0; turn < kLastTurns && streams_.progress(); ++turn) {
    }
    if (!failure_.ok()) return;
    while (stream_->readable() && read_some()) {
    }
    fail(reason);
    stream_->disconnect();
  }

  bool progress(UnexpectedQueue& unexpected) {
    const bool moved = failure_.ok() && move();
    for (; !unexpected_.empty(); unexpected_.pop()) unexpected.push(unexpected_.front());
    return moved;
  }

 private:
  bool move() {
    messages_.return_credit(FrameMessages::kCreditStepBytes);
    const Result<bool> flushed = output_.flush(*stream_);
    if (!flushed.ok()) fail(flushed.status());
    bool moved = !flushed.ok() || flushed.value();
    for (int turn = 0; turn < kReadsPerTurn && failure_.ok() && stream_->readable(); ++turn) {
      if (!read_some()) break;
      moved = true;
    }
    return moved;
  }
  // A failure shows in the next progress().
  void flush() { (void)output_.flush(*stream_); }

  bool read_some() {
    const Result<bool> read = reader_.read_some(*stream_, *this);
    if (!read.ok()) fail(read.status());
    return read.ok() && read.value();
  }

  Result<ByteSpan> begin(const Frame& frame) override {
    if (!FrameMessages::carries(frame.kind)) {
      return status_of(StatusCode::protocol, "a frame of kind {}", static_cast<int>(frame.kind));
    }
    is_unwanted_ = frame.kind != FrameKind::credit && cancelled_.contains(frame.key.group);
    return messages_.begin(frame, is_unwanted_);
  }
  Status end(const Frame& frame) override {
    if (is_unwanted_) return {};
    STRETTO_ASSIGN_OR_RETURN(const bool unexpected, messages_.end(frame));
    if (!unexpected) return {};
    unexpected_.push({.from = peer_, .key = frame.key, .operation = frame.operation});
    return {};
  }

  void fail(const Status& reason) {
    // The text about bytes that make no sense names no rank, so this adds it.
    failure_ =
        reason.rank()
            ? reason
            : Status(reason.code(),
                     fmt::format("the messages of rank {}: {}", peer_.value(), reason.message()),
                     peer_);
    reader_.drop_payload();
    output_.clear(failure_);
    messages_.lose(failure_);
  }

  Rank peer_;
  PacketStreams& streams_;
  Link* stream_;
  OutputQueue output_;
  FrameMessages messages_;
  FrameReader reader_;
  std::set<std::uint64_t> cancelled_;  // Groups of which something may still come.
  std::set<std::uint64_t> closed_;     // Groups that have not been cancelled yet.
  bool is_unwanted_ = false;           // The frame that is coming.
  UnexpectedQueue unexpected_;
  Status failure_;
};

StreamPlane::StreamPlane(Rank self, int ranks, std::unique_ptr<PacketStreams> streams)
    : streams_(std::move(streams)) {
  for (int r = 0; r < ranks; ++r) {
    ways_.push_back(r == self ? nullptr : std::make_unique<Way>(self, r, *streams_));
  }
}

StreamPlane::~StreamPlane() = default;

PeerPlane& StreamPlane::of(Rank peer) { return *ways_[peer]; }

bool StreamPlane::progress(UnexpectedQueue& unexpected) {
  bool moved = streams_->progress();
  for (const auto& way : ways_) {
    if (way != nullptr) moved = way->progress(unexpected) || moved;
  }
  return moved;
}

}  // namespace stretto::transport::packets
