// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/frame_stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace stretto::transport {
namespace {

// A peer that takes without end must not keep the others waiting.
constexpr int kWritesPerTurn = 16;
constexpr std::uint64_t kBytesPerTurn = 4 * kPieceBytes;
// More than one, so that a system call takes several.
constexpr int kPiecesInQueue = 4;
// Large enough that small messages share a read, small enough to stay in the first-level cache.
constexpr std::size_t kStagingBytes = 16 * 1024;
// A payload at least this long is read straight to where it belongs.
constexpr std::size_t kDirectBytes = 4 * 1024;

}  // namespace

void OutputQueue::push(const Frame& frame, ConstByteSpan payload) {
  Output output;
  output.kind = frame.kind;
  output.header = encode(frame);
  output.owned.assign(payload.begin(), payload.end());
  output.payload = output.owned;
  if (frame.kind == FrameKind::report) ++reports_;
  queue_.push(std::move(output));
}

void OutputQueue::push(const Frame& frame, Request& request) {
  const bool in_pieces = frame.begins_pieces();
  queue_.push(Output{.kind = frame.kind,
                     .header = encode(frame),
                     .payload = in_pieces ? ConstByteSpan() : request.outgoing,
                     .owned = {},
                     .group = request.key.group,
                     .request = in_pieces ? nullptr : &request});
  if (!in_pieces) return;
  begun_.push_back({.request = &request, .left_bytes = request.outgoing.size()});
  push_pieces();
}

// Keeps a few pieces in the queue; further ones go behind what has been pushed meanwhile. The
// message that has begun first ends first.
void OutputQueue::push_pieces() {
  for (; pieces_ < kPiecesInQueue && !begun_.empty(); ++pieces_) {
    Begun& begun = begun_.front();
    Request& request = *begun.request;
    const Frame frame{
        .kind = FrameKind::piece, .key = request.key, .message_bytes = begun.left_bytes};
    const std::size_t bytes = frame.payload_bytes();
    const ConstByteSpan payload = request.outgoing.last(begun.left_bytes).first(bytes);
    begun.left_bytes -= bytes;
    const bool is_last = begun.left_bytes == 0;
    queue_.push(Output{.kind = frame.kind,
                       .header = encode(frame),
                       .payload = payload,
                       .owned = {},
                       .group = request.key.group,
                       .request = is_last ? &request : nullptr});
    if (is_last) begun_.erase(begun_.begin());
  }
}

Result<bool> OutputQueue::flush(Link& link) {
  bool moved = false;
  const std::uint64_t end_bytes = written_bytes_ + kBytesPerTurn;
  for (int write = 0; write < kWritesPerTurn && written_bytes_ < end_bytes && !queue_.empty();
       ++write) {
    std::array<ConstByteSpan, kSpans> spans;
    const std::size_t count = gather(spans);
    std::size_t written = 0;
    if (count > 0) {
      STRETTO_ASSIGN_OR_RETURN(std::size_t result, link.write(std::span(spans).first(count)));
      held_bytes_ = link.held_bytes();
      if (result == 0) break;
      written = result;
      moved = true;
    }
    advance(written);
  }
  return moved;
}

// Collects the unsent bytes of the first frames, so that many small frames cost one system call.
std::size_t OutputQueue::gather(std::span<ConstByteSpan> spans) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < queue_.size() && count + 2 <= spans.size(); ++i) {
    const Output& output = queue_[i];
    if (output.sent_bytes == output.total_bytes()) continue;
    const std::size_t sent = output.sent_bytes;
    if (sent < output.header.size()) spans[count++] = std::span(output.header).subspan(sent);
    const std::size_t payload_sent = sent - std::min(sent, output.header.size());
    if (payload_sent < output.payload.size()) {
      spans[count++] = output.payload.subspan(payload_sent);
    }
  }
  return count;
}

void OutputQueue::advance(std::size_t bytes) {
  written_bytes_ += bytes;
  while (!queue_.empty()) {
    Output& output = queue_.front();
    const std::size_t step = std::min(bytes, output.total_bytes() - output.sent_bytes);
    output.sent_bytes += step;
    bytes -= step;
    if (output.sent_bytes < output.total_bytes()) return;
    if (output.request != nullptr) complete(*output.request, Status());
    pop();
    push_pieces();
  }
}

void OutputQueue::pop() {
  const FrameKind kind = queue_.front().kind;
  queue_.pop();
  if (kind == FrameKind::report) --reports_;
  if (kind == FrameKind::piece) --pieces_;
}

std::uint64_t OutputQueue::forget(std::uint64_t group, const Status& reason) {
  std::uint64_t dropped_bytes = 0;
  std::size_t left_bytes = 0;  // Unsent, of this frame and those before it.
  for (std::size_t i = 0; i < queue_.size(); ++i) {
    Output& output = queue_[i];
    const bool begun = output.sent_bytes > 0 || left_bytes < held_bytes_;
    left_bytes += output.total_bytes() - output.sent_bytes;
    if (output.group != group) continue;
    output.group.reset();
    const Request* request = std::exchange(output.request, nullptr);
    if (!begun) {
      output.dropped = true;
      if (output.kind == FrameKind::message) {
        dropped_bytes += unexpected_cost_bytes(output.payload.size());
      }
    } else {
      const std::size_t payload_sent =
          output.sent_bytes - std::min(output.sent_bytes, output.header.size());
      const ConstByteSpan rest = output.payload.subspan(payload_sent);
      output.owned.assign(rest.begin(), rest.end());
      output.payload = output.owned;
      output.sent_bytes -= payload_sent;
    }
    if (request != nullptr) complete(*request, reason);
  }
  std::erase_if(begun_, [&](const Begun& begun) {
    if (begun.request->key.group != group) return false;
    complete(*begun.request, reason);
    return true;
  });
  return dropped_bytes;
}

void OutputQueue::clear(const Status& reason) {
  for (const Begun& begun : begun_) complete(*begun.request, reason);
  begun_.clear();
  while (!queue_.empty()) {
    if (queue_.front().request != nullptr) complete(*queue_.front().request, reason);
    pop();
  }
}

// The staging is local, since the call leaves nothing in it: of many peers most are idle.
Result<bool> FrameReader::read_some(Link& link, Sink& sink) {
  std::array<std::byte, kStagingBytes> staging;
  const bool direct = target_.size() >= kDirectBytes;
  STRETTO_ASSIGN_OR_RETURN(const auto read, link.read(direct ? target_ : ByteSpan(staging)));
  if (read == 0) return false;
  if (direct) {
    target_ = target_.subspan(read);
    payload_left_bytes_ -= read;
    if (payload_left_bytes_ == 0) STRETTO_RETURN_IF_ERROR(end_frame(sink));
    return true;
  }
  ConstByteSpan bytes = std::span(staging).first(read);
  while (!bytes.empty()) STRETTO_RETURN_IF_ERROR(consume(bytes, sink));
  return true;
}

// Takes at least one byte of them.
Status FrameReader::consume(ConstByteSpan& bytes, Sink& sink) {
  if (header_bytes_ < header_.size()) {
    const std::size_t step = std::min(bytes.size(), header_.size() - header_bytes_);
    std::memcpy(header_.data() + header_bytes_, bytes.data(), step);
    bytes = bytes.subspan(step);
    header_bytes_ += step;
    if (header_bytes_ < header_.size()) return {};
    STRETTO_ASSIGN_OR_RETURN(frame_, decode(header_));
    payload_left_bytes_ = frame_.payload_bytes();
    STRETTO_ASSIGN_OR_RETURN(target_, sink.begin(frame_));
    return payload_left_bytes_ == 0 ? end_frame(sink) : Status();
  }
  const std::size_t step =
      static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), payload_left_bytes_));
  if (!target_.empty()) {
    std::memcpy(target_.data(), bytes.data(), step);
    target_ = target_.subspan(step);
  }
  bytes = bytes.subspan(step);
  payload_left_bytes_ -= step;
  return payload_left_bytes_ == 0 ? end_frame(sink) : Status();
}

Status FrameReader::end_frame(Sink& sink) {
  header_bytes_ = 0;
  target_ = {};
  return sink.end(frame_);
}

}  // namespace stretto::transport
