// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/peer.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "stretto/base/printable.h"

namespace stretto::transport {
namespace {

// Large enough that small messages share a read, small enough to stay in the first-level cache.
constexpr std::size_t kStagingBytes = 16 * 1024;
// A payload at least this long is read straight to where it belongs.
constexpr std::size_t kDirectBytes = 4 * 1024;
// One peer that sends without end must not keep the others waiting.
constexpr int kReadsPerTurn = 16;
// How much a receiver lets go of before it says so: seldom enough to cost nothing, often enough
// that a sender whose messages are taken as they come never comes near kEarlyBytesMax.
constexpr std::uint64_t kCreditStepBytes = kEarlyBytesMax / 8;
// Groups that a peer has forgotten and this rank has not. Far more than a program has.
constexpr std::size_t kFarewellsMax = 1 << 16;
// Of this rank, unanswered, and of the peer, answered but not sent. Older ones are given up.
constexpr std::size_t kInquiriesMax = 64;

// How long a link whose other end has been given up by a process may take to deliver what is in it.
constexpr std::chrono::milliseconds kLastWordsTime(100);

std::uint32_t rank_number(const std::optional<Rank>& rank) {
  return rank ? static_cast<std::uint32_t>(rank->value()) : kNoRank;
}

}  // namespace

Peer::Peer(const Ranks& ranks, std::unique_ptr<Link> link, TransportListener* const* listener,
           DataPlane* plane)
    : ranks_(ranks),
      link_(std::move(link)),
      listener_(listener),
      plane_(plane),
      staging_(kStagingBytes) {
  if (plane_ != nullptr) return;
  messages_ = std::make_unique<FrameMessages>(ranks.self, ranks.peer, output_);
  plane_ = messages_.get();
}

// Ends a request that comes too late.
bool Peer::admits(const Request& request, bool is_here) {
  const auto given_up = given_up_.find(request.key.group);
  if (given_up != given_up_.end()) {
    complete(request, given_up->second.reason);
  } else if (!status_.ok() && !is_here) {
    complete(request, status_);
  } else {
    return true;
  }
  return false;
}

void Peer::send(Request& request) {
  if (admits(request, false)) plane_->send(request);
}

void Peer::recv(Request& request) {
  // What a peer sent before it left counts as sent.
  const bool is_here = !status_.ok() && plane_->has_arrived(ranks_.peer, request.key);
  if (admits(request, is_here)) plane_->recv(request);
}

void Peer::give_up(std::uint64_t group, const Status& reason) {
  if (status_.ok() && !given_up_.emplace(group, GivenUp{reason}).second) return;
  if (messages_ != nullptr && messages_->fills(group)) target_ = {};
  plane_->cancel(ranks_.peer, group, reason);
  std::erase_if(inquiries_, [&](const auto& inquiry) { return inquiry.first == group; });
}

void Peer::forget(std::uint64_t group, const Status& reason, Farewell farewell) {
  give_up(group, reason);
  const auto given_up = given_up_.find(group);
  if (given_up == given_up_.end() || given_up->second.forgotten) return;
  given_up->second.forgotten = true;
  output_.push(Frame{.kind = FrameKind::farewell,
                     .key = {.group = group, .segment = static_cast<std::uint32_t>(farewell)},
                     .operation = {}});
  // Nothing of the group can come any more: nothing has to be kept about it.
  if (farewells_.erase(group) > 0) given_up_.erase(given_up);
}

void Peer::send_agreement(const MessageKey& key, ConstByteSpan payload) {
  if (!status_.ok()) return;
  output_.push(Frame{.kind = FrameKind::agreement,
                     .key = key,
                     .message_bytes = payload.size(),
                     .operation = {}},
               payload);
}

void Peer::send_abort(std::uint64_t group, const Status& reason) {
  if (!status_.ok()) return;
  const std::string_view text = reason.message().substr(0, kAbortTextBytes);
  const Frame frame{.kind = FrameKind::abort,
                    .key = {.group = group,
                            .sequence = static_cast<std::uint32_t>(reason.code()),
                            .segment = rank_number(reason.rank())},
                    .message_bytes = text.size(),
                    .operation = {}};
  output_.push(frame, std::as_bytes(std::span(text)));
}

void Peer::inquire(std::uint64_t group, std::uint32_t sequence,
                   const OperationDescriptor& operation) {
  if (!status_.ok()) return;
  const std::pair inquiry(group, sequence);
  if (std::find(inquiries_.begin(), inquiries_.end(), inquiry) != inquiries_.end()) return;
  if (inquiries_.size() >= kInquiriesMax) inquiries_.erase(inquiries_.begin());
  inquiries_.push_back(inquiry);
  output_.push(Frame{.kind = FrameKind::inquiry,
                     .key = {.group = group, .sequence = sequence},
                     .operation = operation});
}

void Peer::leave() {
  leaving_ = true;
  if (status_.ok()) output_.push(Frame{.kind = FrameKind::goodbye, .key = {}, .operation = {}});
}

void Peer::check_contact(TimePoint now) {
  if (!status_.ok()) return;
  contact_ = link_->check_contact(now);
  if (!contact_.wants_sign || !output_.empty()) return;
  // Credit may be repeated: it is news that is never wrong. Without messages, there is none of it.
  if (messages_ != nullptr) {
    messages_->return_credit(0);
  } else {
    output_.push(Frame{.kind = FrameKind::credit, .key = {}, .operation = {}});
  }
  flush();
}

bool Peer::progress() {
  if (!status_.ok()) return false;
  if (messages_ != nullptr) messages_->return_credit(kCreditStepBytes);
  const Result<bool> flushed = output_.flush(*link_);
  if (flushed.status().code() == StatusCode::protocol) lose(flushed.status());
  // A link that refuses bytes may still hold the peer's last words: reading decides what to say.
  bool moved = flushed.ok() && flushed.value();
  for (int turn = 0; turn < kReadsPerTurn && status_.ok() && link_->readable(); ++turn) {
    if (!read_some()) break;
    moved = true;
  }
  if (ended_process_ != 0) check_process(moved);
  return moved;
}

void Peer::process_ended(int number) {
  ended_process_ = number;
  last_words_ = Deadline::after(kLastWordsTime);
}

void Peer::check_process(bool moved) {
  if (moved) last_words_ = Deadline::after(kLastWordsTime);
  if (!status_.ok() || !last_words_.passed()) return;
  lose(status_of(StatusCode::peer_lost, "its process (pid {}) has ended", ended_process_));
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
  dropping_ = unwanted(frame);
  if (FrameMessages::carries(frame.kind)) return begin_message(frame);
  if (dropping_) return {};
  switch (frame.kind) {
    case FrameKind::abort:
    case FrameKind::report:
    case FrameKind::agreement:
      text_.resize(frame.message_bytes);
      target_ = text_;
      return {};
    case FrameKind::farewell:
      return farewell_arrived(frame.key.group);
    default:
      return {};
  }
}

Status Peer::begin_message(const Frame& frame) {
  if (messages_ != nullptr) {
    Result<ByteSpan> target = messages_->begin(frame, dropping_);
    if (target.ok()) target_ = *target;
    return target.status();
  }
  // A sign of life.
  if (frame.kind == FrameKind::credit && frame.message_bytes == 0) return {};
  return status_of(StatusCode::protocol,
                   "a message came by a link that carries none: the ranks have been set up with "
                   "different data planes");
}

// Whether a frame is about something that this rank has no part in any more.
bool Peer::unwanted(const Frame& frame) const {
  switch (frame.kind) {
    case FrameKind::message:
    case FrameKind::announce:
    case FrameKind::clear:
    case FrameKind::data:
    case FrameKind::abort:
      return leaving_ || given_up_.contains(frame.key.group);
    case FrameKind::agreement: {
      const auto given_up = given_up_.find(frame.key.group);
      return leaving_ || (given_up != given_up_.end() && given_up->second.forgotten);
    }
    case FrameKind::inquiry:
    case FrameKind::report:
      return leaving_;
    case FrameKind::goodbye:
    case FrameKind::farewell:
    case FrameKind::credit:
      return false;
  }
  return false;
}

Status Peer::farewell_arrived(std::uint64_t group) {
  const auto given_up = given_up_.find(group);
  if (given_up != given_up_.end() && given_up->second.forgotten) {
    given_up_.erase(given_up);
    return {};
  }
  if (farewells_.size() >= kFarewellsMax) {
    return status_of(StatusCode::protocol, "more than {} groups forgotten that are in use here",
                     kFarewellsMax);
  }
  farewells_.insert(group);
  return {};
}

// The payload is complete: what the frame is about happens now.
void Peer::end_frame() {
  header_bytes_ = 0;
  target_ = {};
  if (dropping_) return;
  if (messages_ != nullptr && FrameMessages::carries(frame_.kind)) return end_message();
  switch (frame_.kind) {
    case FrameKind::abort:
      return abort_arrived();
    case FrameKind::inquiry:
      return answer_inquiry();
    case FrameKind::report:
      return report_arrived();
    case FrameKind::agreement:
      return agreement_arrived();
    case FrameKind::goodbye:
      said_goodbye_ = true;
      return;
    case FrameKind::farewell:
      // Nothing that has been forgotten here has a listener any more.
      if (farewells_.contains(frame_.key.group) && *listener_ != nullptr) {
        const bool unwinding =
            frame_.key.segment == static_cast<std::uint32_t>(Farewell::unwinding);
        (*listener_)
            ->group_left(frame_.key.group, ranks_.peer,
                         unwinding ? Farewell::unwinding : Farewell::in_order);
      }
      return;
    default:
      return;
  }
}

void Peer::end_message() {
  const Result<bool> unexpected = messages_->end(frame_);
  if (!unexpected.ok()) return lose(unexpected.status());
  if (!unexpected.value() || *listener_ == nullptr) return;
  (*listener_)->message_early(ranks_.peer, frame_.key, frame_.operation);
}

std::string Peer::text() const {
  return printable({reinterpret_cast<const char*>(text_.data()), text_.size()});
}

void Peer::answer_inquiry() {
  // More inquiries than a correct peer leaves open find no answer, for it might never be read.
  if (*listener_ == nullptr || output_.reports() >= static_cast<int>(kInquiriesMax)) return;
  const MessageKey key{.group = frame_.key.group, .sequence = frame_.key.sequence};
  std::string state =
      (*listener_)->describe_state(ranks_.peer, key.group, key.sequence, frame_.operation);
  state.resize(std::min(state.size(), kReportTextBytes));
  output_.push(
      Frame{.kind = FrameKind::report, .key = key, .message_bytes = state.size(), .operation = {}},
      std::as_bytes(std::span(state)));
}

void Peer::report_arrived() {
  const std::pair inquiry(frame_.key.group, frame_.key.sequence);
  // Only what has been asked for, and once.
  if (std::erase(inquiries_, inquiry) == 0 || *listener_ == nullptr) return;
  (*listener_)->state_reported(ranks_.peer, inquiry.first, inquiry.second, text());
}

void Peer::agreement_arrived() {
  if (*listener_ == nullptr) return;
  const Status status = (*listener_)->agreement_arrived(ranks_.peer, frame_.key, text_);
  if (!status.ok()) lose(status);
}

void Peer::abort_arrived() {
  // The group may have been given up while the text came.
  if (*listener_ == nullptr || given_up_.contains(frame_.key.group)) return;
  const std::uint32_t code = frame_.key.sequence;
  const bool known = code > 0 && code <= static_cast<std::uint32_t>(StatusCode::internal);
  std::optional<Rank> culprit;
  if (frame_.key.segment < static_cast<std::uint32_t>(ranks_.count)) {
    culprit = static_cast<std::int32_t>(frame_.key.segment);
  }
  const Status reason(known ? static_cast<StatusCode>(code) : StatusCode::aborted, text(), culprit);
  (*listener_)->group_aborted(frame_.key.group, ranks_.peer, reason);
}

void Peer::lose(const Status& reason) {
  if (!status_.ok()) return;
  const std::string text =
      said_goodbye_
          ? fmt::format("rank {} has left the job", ranks_.peer.value())
          : fmt::format("lost rank {} ({}{}{}): {}", ranks_.peer.value(), link_->name(),
                        ranks_.peer_name.empty() ? "" : ", ", ranks_.peer_name, reason.message());
  const bool protocol = reason.code() == StatusCode::protocol;
  status_ = Status(protocol ? StatusCode::protocol : StatusCode::peer_lost, text, ranks_.peer);
  // A peer that is given up should not go on waiting.
  if (!said_goodbye_) link_->disconnect();
  target_ = {};
  given_up_.clear();
  farewells_.clear();
  inquiries_.clear();
  output_.clear(status_);
  plane_->lose(ranks_.peer, status_);
  if (*listener_ == nullptr) return;
  if (said_goodbye_) {
    (*listener_)->peer_left(ranks_.peer, status_);
  } else {
    (*listener_)->peer_lost(ranks_.peer, status_);
  }
}

}  // namespace stretto::transport
