// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/output_queue.h"

#include <algorithm>
#include <array>

namespace stretto::transport {
namespace {

// A peer that takes without end must not keep the others waiting.
constexpr int kWritesPerTurn = 16;

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
  queue_.push(Output{.kind = frame.kind,
                     .header = encode(frame),
                     .payload = request.outgoing,
                     .owned = {},
                     .request = &request,
                     .group = request.key.group});
}

Result<bool> OutputQueue::flush(Link& link) {
  bool moved = false;
  for (int write = 0; write < kWritesPerTurn && !queue_.empty(); ++write) {
    std::array<ConstByteSpan, kPieces> pieces;
    const std::size_t count = gather(pieces);
    std::size_t written = 0;
    if (count > 0) {
      STRETTO_ASSIGN_OR_RETURN(std::size_t result, link.write(std::span(pieces).first(count)));
      held_bytes_ = link.held_bytes();
      if (result == 0) break;
      written = result;
      moved = true;
    }
    advance(written);
  }
  return moved;
}

// The unsent bytes of the first frames, so that many small frames cost one system call.
std::size_t OutputQueue::gather(std::span<ConstByteSpan> pieces) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < queue_.size() && count + 2 <= pieces.size(); ++i) {
    const Output& output = queue_[i];
    if (output.sent_bytes == output.total_bytes()) continue;
    const std::size_t sent = output.sent_bytes;
    if (sent < output.header.size()) pieces[count++] = std::span(output.header).subspan(sent);
    const std::size_t payload_sent = sent - std::min(sent, output.header.size());
    if (payload_sent < output.payload.size()) {
      pieces[count++] = output.payload.subspan(payload_sent);
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
  }
}

void OutputQueue::pop() {
  if (queue_.front().kind == FrameKind::report) --reports_;
  queue_.pop();
}

std::uint64_t OutputQueue::forget(std::uint64_t group, const Status& reason) {
  std::uint64_t dropped_bytes = 0;
  std::size_t left_bytes = 0;  // Of this frame and those before it.
  for (std::size_t i = 0; i < queue_.size(); ++i) {
    Output& output = queue_[i];
    const bool begun = output.sent_bytes > 0 || left_bytes < held_bytes_;
    left_bytes += output.total_bytes() - output.sent_bytes;
    if (output.request == nullptr || output.group != group) continue;
    Request* request = std::exchange(output.request, nullptr);
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
    complete(*request, reason);
  }
  return dropped_bytes;
}

void OutputQueue::clear(const Status& reason) {
  while (!queue_.empty()) {
    if (queue_.front().request != nullptr) complete(*queue_.front().request, reason);
    pop();
  }
}

}  // namespace stretto::transport
