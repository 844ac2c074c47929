// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/peer.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace stretto::transport {
namespace {

// Large enough that small messages share a read, small enough to stay in the first-level cache.
constexpr std::size_t kStagingBytes = 16 * 1024;
// A payload at least this long is read straight to where it belongs.
constexpr std::size_t kDirectBytes = 4 * 1024;
// Above this, messages that nobody has asked for stay in the link, which then holds the sender
// back.
constexpr std::size_t kEarlyBytesMax = 64 * 1024 * 1024;
// One peer that sends without end must not keep the others waiting.
constexpr int kReadsPerTurn = 16;

}  // namespace

Peer::Peer(const Ranks& ranks, std::unique_ptr<Link> link, TransportListener* const* listener)
    : ranks_(ranks),
      link_(std::move(link)),
      listener_(listener),
      matcher_(ranks.self, ranks.peer),
      staging_(kStagingBytes) {}

void Peer::send(Request& request) {
  request.done = false;
  const auto given_up = forgotten_.find(request.key.group);
  if (given_up != forgotten_.end()) return end_request(request, given_up->second);
  if (!status_.ok()) return end_request(request, status_);
  Frame frame{.kind = FrameKind::message,
              .key = request.key,
              .message_bytes = request.outgoing.size(),
              .operation = request.operation};
  if (request.outgoing.size() <= kEagerBytes) {
    output_.push(frame, request);
  } else if (matcher_.post_large_send(request)) {
    frame.kind = FrameKind::data;
    output_.push(frame, request);
  } else {
    frame.kind = FrameKind::announce;
    output_.push(frame);
  }
}

void Peer::recv(Request& request) {
  request.done = false;
  const auto given_up = forgotten_.find(request.key.group);
  if (given_up != forgotten_.end()) return end_request(request, given_up->second);
  // What a peer sent before it left counts as sent.
  if (!status_.ok() && !matcher_.has_early(request.key)) return end_request(request, status_);
  if (!matcher_.post_receive(request)) return;
  output_.push(Frame{.kind = FrameKind::clear,
                     .key = request.key,
                     .message_bytes = request.incoming.size(),
                     .operation = request.operation});
}

void Peer::forget(std::uint64_t group, const Status& reason) {
  forgotten_.emplace(group, reason);
  if (target_request_ != nullptr && target_request_->key.group == group) {
    Request* request = std::exchange(target_request_, nullptr);
    target_ = {};
    end_request(*request, reason);
  }
  output_.forget(group, reason);
  matcher_.forget(group, reason);
}

void Peer::send_abort(std::uint64_t group, const Status& reason) {
  if (!status_.ok()) return;
  const std::string_view text = reason.message().substr(0, kAbortTextBytes);
  const Frame frame{
      .kind = FrameKind::abort,
      .key = {.group = group,
              .sequence = static_cast<std::uint32_t>(reason.code()),
              .segment =
                  reason.rank() ? static_cast<std::uint32_t>(reason.rank()->value()) : kNoRank},
      .message_bytes = text.size(),
      .operation = {}};
  output_.push(frame, std::as_bytes(std::span(text)));
}

void Peer::send_goodbye() {
  if (status_.ok()) output_.push(Frame{.kind = FrameKind::goodbye, .key = {}, .operation = {}});
}

bool Peer::progress() {
  if (!status_.ok()) return false;
  const Result<bool> flushed = output_.flush(*link_);
  if (flushed.status().code() == StatusCode::protocol) lose(flushed.status());
  // A link that refuses bytes may still hold the peer's last words: reading decides what to say.
  bool moved = flushed.ok() && flushed.value();
  for (int turn = 0; turn < kReadsPerTurn && status_.ok() && link_->readable(); ++turn) {
    if (matcher_.early_bytes() > kEarlyBytesMax || !read_some()) break;
    moved = true;
  }
  return moved;
}

void Peer::flush() {
  if (status_.ok()) (void)output_.flush(*link_);
}

// One read: straight into the target of a long payload, else into the staging area.
bool Peer::read_some() {
  const bool direct = target_.size() >= kDirectBytes && staged_begin_ == staged_end_;
  Result<std::size_t> read = direct ? link_->read(target_) : link_->read(staging_);
  if (!read.ok()) {
    lose(read.status());
    return true;
  }
  if (*read == 0) return false;
  if (direct) {
    target_ = target_.subspan(*read);
    payload_left_bytes_ -= *read;
    if (payload_left_bytes_ == 0) end_frame();
    return true;
  }
  staged_begin_ = 0;
  staged_end_ = *read;
  while (staged_begin_ < staged_end_ && status_.ok()) {
    staged_begin_ +=
        consume(std::span(staging_).subspan(staged_begin_, staged_end_ - staged_begin_));
  }
  return true;
}

// Feeds the parser; returns how many bytes it has taken, at least one.
std::size_t Peer::consume(ConstByteSpan bytes) {
  if (header_bytes_ < header_.size()) {
    const std::size_t step = std::min(bytes.size(), header_.size() - header_bytes_);
    std::memcpy(header_.data() + header_bytes_, bytes.data(), step);
    header_bytes_ += step;
    if (header_bytes_ < header_.size()) return step;
    Result<Frame> frame = decode(header_);
    Status status = frame.ok() ? begin_frame(*frame) : frame.status();
    if (!status.ok()) {
      lose(status);
    } else if (payload_left_bytes_ == 0) {
      end_frame();
    }
    return step;
  }
  const std::size_t step =
      static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), payload_left_bytes_));
  if (!target_.empty()) {
    std::memcpy(target_.data(), bytes.data(), step);
    target_ = target_.subspan(step);
  }
  payload_left_bytes_ -= step;
  if (payload_left_bytes_ == 0) end_frame();
  return step;
}

Status Peer::begin_frame(const Frame& frame) {
  frame_ = frame;
  payload_left_bytes_ = frame.payload_bytes();
  target_ = {};
  target_request_ = nullptr;
  target_early_ = nullptr;
  dropping_ = forgotten(frame);
  if (dropping_) return {};
  switch (frame.kind) {
    case FrameKind::message:
      target_request_ = matcher_.message_header(frame, &target_early_);
      if (target_request_ != nullptr) target_ = target_request_->incoming;
      if (target_early_ != nullptr) target_ = target_early_->bytes;
      break;
    case FrameKind::data:
      target_request_ = matcher_.data_header(frame);
      if (target_request_ != nullptr) target_ = target_request_->incoming;
      break;
    case FrameKind::abort:
      abort_text_.resize(frame.message_bytes);
      target_ = abort_text_;
      break;
    case FrameKind::clear: {
      Result<Request*> request = matcher_.clear_arrived(frame);
      if (!request.ok()) return request.status();
      if (*request == nullptr) break;
      if ((*request)->outgoing.size() != frame.message_bytes) {
        // The receiver will find out by the announcement and say so; this side only ends its part.
        end_request(**request, mismatch_status(ranks_.peer, frame.operation, ranks_.self,
                                               (*request)->operation, frame.key.sequence));
        break;
      }
      output_.push(Frame{.kind = FrameKind::data,
                         .key = (*request)->key,
                         .message_bytes = (*request)->outgoing.size(),
                         .operation = (*request)->operation},
                   **request);
      break;
    }
    case FrameKind::announce:
    case FrameKind::goodbye:
      break;
  }
  return {};
}

bool Peer::forgotten(const Frame& frame) const {
  const bool of_a_request = frame.kind != FrameKind::abort && frame.kind != FrameKind::goodbye;
  return of_a_request && forgotten_.contains(frame.key.group);
}

// The payload is complete: what the frame is about happens now.
void Peer::end_frame() {
  header_bytes_ = 0;
  target_ = {};
  if (dropping_) return;
  bool early = false;
  switch (frame_.kind) {
    case FrameKind::announce:
      early = matcher_.announced(frame_);
      break;
    case FrameKind::abort:
      receive_abort();
      return;
    case FrameKind::goodbye:
      said_goodbye_ = true;
      return;
    default:
      break;
  }
  if (Request* request = std::exchange(target_request_, nullptr)) end_request(*request, Status());
  if (target_early_ != nullptr) {
    early = matcher_.early_complete(*std::exchange(target_early_, nullptr));
  }
  if (early && *listener_ != nullptr) {
    (*listener_)->message_early(ranks_.peer, frame_.key, frame_.operation);
  }
}

void Peer::receive_abort() {
  if (*listener_ == nullptr) return;
  const std::string text(reinterpret_cast<const char*>(abort_text_.data()), abort_text_.size());
  const std::uint32_t code = frame_.key.sequence;
  const bool known = code > 0 && code <= static_cast<std::uint32_t>(StatusCode::internal);
  std::optional<Rank> culprit;
  if (frame_.key.segment < static_cast<std::uint32_t>(ranks_.count)) {
    culprit = static_cast<std::int32_t>(frame_.key.segment);
  }
  const Status reason(known ? static_cast<StatusCode>(code) : StatusCode::aborted, text, culprit);
  (*listener_)->group_aborted(frame_.key.group, ranks_.peer, reason);
}

void Peer::lose(const Status& reason) {
  if (!status_.ok()) return;
  const std::string text = said_goodbye_
                               ? fmt::format("rank {} has left the job", ranks_.peer.value())
                               : fmt::format("lost rank {} ({}): {}", ranks_.peer.value(),
                                             link_->name(), reason.message());
  const bool protocol = reason.code() == StatusCode::protocol;
  status_ = Status(protocol ? StatusCode::protocol : StatusCode::peer_lost, text, ranks_.peer);
  if (Request* request = std::exchange(target_request_, nullptr)) end_request(*request, status_);
  target_ = {};
  output_.clear(status_);
  matcher_.lose(status_);
  if (*listener_ == nullptr) return;
  if (said_goodbye_) {
    (*listener_)->peer_left(ranks_.peer, status_);
  } else {
    (*listener_)->peer_lost(ranks_.peer, status_);
  }
}

}  // namespace stretto::transport
