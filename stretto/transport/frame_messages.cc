// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/frame_messages.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace stretto::transport {
namespace {

// Limit on messages in pieces that nobody takes: a correct peer has one for each mismatch at most.
constexpr std::ptrdiff_t kDroppedMax = 1 << 12;

}  // namespace

void FrameMessages::send(Request& request) {
  Frame frame{.kind = FrameKind::message,
              .key = request.key,
              .message_bytes = request.outgoing.size(),
              .operation = request.operation};
  const std::uint64_t sent_cost = sent_cost_ + unexpected_cost_bytes(request.outgoing.size());
  const bool fits = sent_cost - sent_credit_ <= kUnexpectedBytesMax;
  if (request.outgoing.size() <= kEagerBytes && fits) {
    sent_cost_ = sent_cost;
    output_->push(frame, request);
  } else if (matcher_.post_waiting_send(request)) {
    frame.kind = FrameKind::data;
    output_->push(frame, request);
  } else {
    frame.kind = FrameKind::announce;
    output_->push(frame);
  }
}

void FrameMessages::recv(Request& request) {
  if (matcher_.post_receive(request)) {
    push_clear(request.key, request.incoming.size(), request.operation);
  }
}

void FrameMessages::push_clear(const MessageKey& key, std::uint64_t bytes,
                               const OperationDescriptor& operation) {
  output_->push(
      Frame{.kind = FrameKind::clear, .key = key, .message_bytes = bytes, .operation = operation});
}

void FrameMessages::cancel(std::uint64_t group, const Status& reason) {
  end_begun(&group, reason);
  sent_cost_ -= output_->forget(group, reason);
  matcher_.end_requests(&group, reason);
}

void FrameMessages::lose(const Status& reason) {
  end_begun(nullptr, reason);
  matcher_.end_requests(nullptr, reason);
}

// Ends the receives that are being filled: of `*group` or, if `group` is null, of all groups.
void FrameMessages::end_begun(const std::uint64_t* group, const Status& reason) {
  const auto concerned = [&](const MessageKey& key) {
    return group == nullptr || key.group == *group;
  };
  std::erase_if(begun_, [&](const Begun& begun) {
    if (!concerned(begun.key)) return false;
    if (begun.request == target_request_) target_request_ = nullptr;
    if (begun.request != nullptr) complete(*begun.request, reason);
    return true;
  });
  if (target_request_ != nullptr && concerned(target_request_->key)) {
    complete(*std::exchange(target_request_, nullptr), reason);
  }
}

void FrameMessages::return_credit(std::uint64_t least_step_bytes) {
  if (!owes_credit(least_step_bytes)) return;
  received_credit_ = taken_cost();
  output_->push(Frame{.kind = FrameKind::credit, .message_bytes = received_credit_});
}

bool FrameMessages::carries(FrameKind kind) {
  return kind == FrameKind::message || kind == FrameKind::announce || kind == FrameKind::clear ||
         kind == FrameKind::data || kind == FrameKind::piece || kind == FrameKind::credit;
}

Result<ByteSpan> FrameMessages::begin(const Frame& frame, bool unwanted) {
  target_request_ = nullptr;
  target_unexpected_ = nullptr;
  if (frame.kind == FrameKind::message) {
    // Every message counts until it is taken, even an unwanted one.
    received_cost_ += unexpected_cost_bytes(frame.message_bytes);
    if (received_cost_ - received_credit_ > kUnexpectedBytesMax) {
      return status_of(StatusCode::protocol, "more than {} bytes sent that nobody has asked for",
                       kUnexpectedBytesMax);
    }
  }
  if (unwanted) return ByteSpan();
  if (frame.kind == FrameKind::message) {
    target_request_ = matcher_.message_header(frame, &target_unexpected_);
    if (target_unexpected_ != nullptr) return ByteSpan(target_unexpected_->bytes);
  } else if (frame.kind == FrameKind::data) {
    STRETTO_RETURN_IF_ERROR(data_arrived(frame));
  } else if (frame.kind == FrameKind::piece) {
    return piece_arrived(frame);
  } else if (frame.kind == FrameKind::clear) {
    STRETTO_RETURN_IF_ERROR(clear_arrived(frame));
  } else if (frame.kind == FrameKind::credit) {
    STRETTO_RETURN_IF_ERROR(credit_arrived(frame.message_bytes));
  }
  return target_request_ != nullptr ? target_request_->incoming : ByteSpan();
}

Status FrameMessages::data_arrived(const Frame& frame) {
  Request* const request = matcher_.data_header(frame);
  if (!frame.begins_pieces()) {
    target_request_ = request;
    return {};
  }
  const auto is_dropped = [](const Begun& begun) { return begun.request == nullptr; };
  if (request == nullptr && std::ranges::count_if(begun_, is_dropped) >= kDroppedMax) {
    return status_of(StatusCode::protocol, "more than {} messages begun that nobody receives",
                     kDroppedMax);
  }
  begun_.push_back({.key = frame.key, .request = request, .left_bytes = frame.message_bytes});
  return {};
}

Result<ByteSpan> FrameMessages::piece_arrived(const Frame& frame) {
  const auto begun = std::ranges::find(begun_, frame.key, &Begun::key);
  if (begun == begun_.end() || begun->left_bytes != frame.message_bytes) {
    return status_of(StatusCode::protocol, "a piece came of a message with {} bytes left, not {}",
                     begun == begun_.end() ? 0 : begun->left_bytes, frame.message_bytes);
  }
  const std::uint64_t bytes = frame.payload_bytes();
  target_request_ = begun->request;
  begun->left_bytes -= bytes;
  if (begun->left_bytes == 0) begun_.erase(begun);
  if (target_request_ == nullptr) return ByteSpan();
  return target_request_->incoming.last(frame.message_bytes).first(bytes);
}

Result<bool> FrameMessages::end(const Frame& frame) {
  if (frame.kind == FrameKind::announce) return announcement_arrived(frame);
  Request* const request = std::exchange(target_request_, nullptr);
  const bool is_whole = frame.payload_bytes() == frame.message_bytes;
  if (request != nullptr && is_whole) complete(*request, Status());
  return target_unexpected_ != nullptr &&
         matcher_.unexpected_complete(*std::exchange(target_unexpected_, nullptr));
}

Result<bool> FrameMessages::announcement_arrived(const Frame& frame) {
  STRETTO_ASSIGN_OR_RETURN(const Matcher::Announcement announcement, matcher_.announced(frame));
  if (announcement == Matcher::Announcement::clear) {
    push_clear(frame.key, frame.message_bytes, frame.operation);
  }
  return announcement == Matcher::Announcement::unexpected;
}

Status FrameMessages::clear_arrived(const Frame& frame) {
  STRETTO_ASSIGN_OR_RETURN(auto found, matcher_.clear_arrived(frame));
  if (found == nullptr) return {};
  output_->push(Frame{.kind = FrameKind::data,
                      .key = found->key,
                      .message_bytes = found->outgoing.size(),
                      .operation = found->operation},
                *found);
  return {};
}

Status FrameMessages::credit_arrived(std::uint64_t total_bytes) {
  if (total_bytes < sent_credit_ || total_bytes > sent_cost_) {
    return status_of(StatusCode::protocol, "credit for {} bytes, which is not between {} and {}",
                     total_bytes, sent_credit_, sent_cost_);
  }
  sent_credit_ = total_bytes;
  return {};
}

}  // namespace stretto::transport
