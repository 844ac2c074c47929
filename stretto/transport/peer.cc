// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/peer.h"

#include <algorithm>

#include <fmt/format.h>

#include "stretto/base/printable.h"

namespace stretto::transport {
namespace {

// One peer that sends without end must not keep the others waiting.
constexpr int kReadsPerTurn = 16;
// Limit on groups that a peer has forgotten and this rank has not: far more than a program has.
constexpr std::size_t kFarewellsMax = 1 << 16;
// Limit on payloads of agreements that wait for another plane.
constexpr std::size_t kUnheardBytesMax = 16 * kAgreementBytes;
// Limit on this rank's unanswered inquiries, of which the oldest is then given up, and on reports
// that are not sent yet: further inquiries of the peer get no answer.
constexpr std::size_t kInquiriesMax = 64;

// How long to wait for the few messages of another plane that had begun to come when the peer said
// something by the link; and how much of that the time between two checks counts at most.
constexpr std::chrono::seconds kPlaneTime(10);
constexpr std::chrono::seconds kCheckTime(1);

// How long a link may take to deliver what is in it after the peer's process has ended.
constexpr std::chrono::milliseconds kLastWordsTime(100);

// How long whoever looks after a process may take to tell how it has ended. A link ends a little
// before its process does.
constexpr std::chrono::milliseconds kObituaryTime(100);

std::uint32_t rank_number(const std::optional<Rank>& rank) {
  return rank ? static_cast<std::uint32_t>(rank->value()) : kNoRank;
}

}  // namespace

Peer::Peer(const Ranks& ranks, std::unique_ptr<Link> link, TransportListener* const* listener,
           PeerPlane* plane, std::size_t* unexpected_count)
    : ranks_(ranks), link_(std::move(link)), listener_(listener), plane_(plane) {
  if (plane_ != nullptr) return;
  messages_ = std::make_unique<FrameMessages>(ranks.self, ranks.peer, output_, unexpected_count);
  plane_ = messages_.get();
}

// Whether the request may go on; ends it if it comes too late.
bool Peer::admits(const Request& request, bool is_here) {
  const auto abandoned = abandoned_.find(request.key.group);
  if (abandoned != abandoned_.end()) {
    complete(request, abandoned->second.reason);
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
  // Messages that came before the peer left can still be received.
  const bool is_here = !status_.ok() && plane_->has_arrived(request.key);
  if (admits(request, is_here)) plane_->recv(request);
}

void Peer::abandon(std::uint64_t group, const Status& reason) {
  if (status_.ok() && !abandoned_.emplace(group, Abandoned{reason}).second) return;
  if (messages_ != nullptr && messages_->fills(group)) reader_.drop_payload();
  plane_->cancel(group, reason);
  std::erase_if(inquiries_, [&](const auto& inquiry) { return inquiry.first == group; });
}

void Peer::forget(std::uint64_t group, const Status& reason, Farewell farewell) {
  abandon(group, reason);
  const auto abandoned = abandoned_.find(group);
  if (abandoned == abandoned_.end() || abandoned->second.forgotten) return;
  abandoned->second.forgotten = true;
  say_behind_plane({.kind = FrameKind::farewell,
                    .key = {.group = group, .segment = static_cast<std::uint32_t>(farewell)}});
  // Nothing of the group can come any more: nothing has to be kept about it.
  if (farewells_.erase(group) > 0) abandoned_.erase(abandoned);
}

// Whether messages that were sent by another plane may still be on their way.
bool Peer::plane_lags() const { return messages_ == nullptr && plane_->has_output(); }

void Peer::say_behind_plane(const Frame& frame, ConstByteSpan payload) {
  unsaid_.push_back({frame, {payload.begin(), payload.end()}});
  if (!plane_lags()) say_unsaid();
}

void Peer::say_unsaid() {
  for (const auto& [frame, payload] : unsaid_) output_.push(frame, payload);
  unsaid_.clear();
}

Status Peer::hear_later(const Frame& frame) {
  if (unheard_.empty()) plane_waited_ = {};
  Unheard& next = unheard_.emplace_back(Unheard{frame, {}, plane_->arrivals()});
  if (frame.kind == FrameKind::agreement) next.payload = text_;
  unheard_bytes_ += next.payload.size();
  STRETTO_RETURN_IF_ERROR(hear().status());
  if (unheard_.size() <= kFarewellsMax && unheard_bytes_ <= kUnheardBytesMax) return {};
  return status_of(StatusCode::protocol,
                   "it has forgotten {} groups, or agreed on them, whose messages have not come",
                   unheard_.size());
}

// Acts upon the frames that need not wait any more. Returns whether there were any.
Result<bool> Peer::hear() {
  bool any = false;
  const bool may_come = status_.ok() && plane_waited_ < kPlaneTime;
  while (!unheard_.empty()) {
    const bool all_read = plane_->has_read(unheard_.front().arrivals);
    if (may_come && !all_read) break;
    const Unheard next = std::move(unheard_.front());
    unheard_.pop_front();
    unheard_bytes_ -= next.payload.size();
    any = true;
    if (all_read && next.frame.kind == FrameKind::farewell) {
      plane_->close(next.frame.key.group);
    }
    STRETTO_RETURN_IF_ERROR(heard(next.frame, next.payload));
  }
  if (any) plane_waited_ = {};
  return any;
}

Status Peer::heard(const Frame& frame, ConstByteSpan payload) {
  if (*listener_ == nullptr || unwanted(frame)) return {};
  TransportListener& listener = **listener_;
  const MessageKey& key = frame.key;
  if (frame.kind == FrameKind::agreement) {
    return listener.agreement_arrived(ranks_.peer, key, payload);
  }
  // A group that has been forgotten here has no listener any more.
  if (frame.kind != FrameKind::farewell || !farewells_.contains(key.group)) return {};
  const bool unwinding = key.segment == static_cast<std::uint32_t>(Farewell::unwinding);
  listener.group_left(key.group, ranks_.peer, unwinding ? Farewell::unwinding : Farewell::in_order);
  return {};
}

void Peer::send_agreement(const MessageKey& key, ConstByteSpan payload) {
  if (!status_.ok()) return;
  say_behind_plane({.kind = FrameKind::agreement, .key = key, .message_bytes = payload.size()},
                   payload);
}

void Peer::send_abort(std::uint64_t group, const Status& reason, GroupStage stage) {
  if (!status_.ok()) return;
  const std::string_view text = reason.message().substr(0, kAbortTextBytes);
  const Frame frame{.kind = FrameKind::abort,
                    .key = {.group = group,
                            .sequence = static_cast<std::uint32_t>(reason.code()),
                            .segment = rank_number(reason.rank()),
                            .message = static_cast<std::uint32_t>(stage)},
                    .message_bytes = text.size()};
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
  if (!status_.ok()) return;
  say_unsaid();
  output_.push(Frame{.kind = FrameKind::goodbye});
}

void Peer::check_contact(TimePoint now) {
  if (!status_.ok()) {  // Texts about a later outage must not name this peer.
    if (now - checked_at_ > contact_.silence) contact_ = {};
    return;
  }
  if (awaits_obituary()) return;
  // Time in which this process stood still counts for kCheckTime at most.
  plane_waited_ += std::min<Duration>(now - std::exchange(checked_at_, now), kCheckTime);
  contact_ = link_->check_contact(now);
  // While no message is coming, only signs of life arrive, which make no rate.
  const bool is_amid_pieces = messages_ != nullptr && messages_->is_amid_pieces();
  if (!reader_.is_within_payload() && !is_amid_pieces) contact_.received_rate = 0;
  if (!contact_.wants_sign || !output_.empty()) return;
  // The sign is a credit, which may be repeated. Where the link carries no messages, it is empty.
  if (messages_ != nullptr) {
    messages_->return_credit(0);
  } else {
    output_.push(Frame{.kind = FrameKind::credit});
  }
  flush();
}

bool Peer::progress() {
  if (!status_.ok()) return false;
  if (awaits_obituary()) return look_for_obituary();
  if (!unsaid_.empty() && !plane_lags()) say_unsaid();
  if (messages_ != nullptr) messages_->return_credit(FrameMessages::kCreditStepBytes);
  const Result<bool> flushed = output_.flush(*link_);
  if (flushed.status().code() == StatusCode::protocol) lose(flushed.status());
  // A link that refuses bytes may still hold the peer's last frames: reading finds the reason.
  bool moved = flushed.ok() && flushed.value();
  const Result<bool> has_heard = hear();
  if (!has_heard.ok()) lose(has_heard.status());
  moved = (has_heard.ok() && has_heard.value()) || moved;
  // The link ends after a goodbye, so it is not read before everything unheard has been heard.
  const auto may_read = [&] {
    return status_.ok() && end_.ok() && link_->readable() && (!said_goodbye_ || unheard_.empty());
  };
  for (int turn = 0; turn < kReadsPerTurn && may_read(); ++turn) {
    const Result<bool> read = reader_.read_some(*link_, *this);
    if (!read.ok()) {
      end_by(read.status());
    } else if (!read.value()) {
      break;
    }
    moved = true;
  }
  if (ended_process_ != 0) check_process(moved);
  return moved;
}

// Covers all that progress() acts upon. No event tells that time has passed or another plane moved.
bool Peer::needs_progress() const {
  if (!status_.ok()) return false;
  return !link_->needs_poll() || awaits_obituary() || !unsaid_.empty() || !output_.empty() ||
         (messages_ != nullptr && messages_->owes_credit(FrameMessages::kCreditStepBytes)) ||
         !unheard_.empty() || link_->readable() || ended_process_ != 0;
}

void Peer::process_ended(int number) {
  ended_process_ = number;
  last_words_ = Deadline::after(kLastWordsTime);
}

void Peer::check_process(bool moved) {
  // After a goodbye, the end waits for messages that come by another plane.
  if (moved || (said_goodbye_ && !unheard_.empty())) {
    last_words_ = Deadline::after(kLastWordsTime);
  }
  if (!status_.ok() || !end_.ok() || !last_words_.passed()) return;
  end_by(status_of(StatusCode::peer_lost, "its process (pid {}) has ended", ended_process_));
}

// Nothing more comes by the link.
void Peer::end_by(const Status& reason) {
  end_ = reason;
  obituary_awaited_ = Deadline::after(kObituaryTime);
  look_for_obituary();
}

// Loses the peer, whose link has ended, unless the listener may yet learn how its process ended.
// Returns whether the peer is lost.
bool Peer::look_for_obituary() {
  std::optional<std::string> obituary;
  const bool may_have_died = end_.code() != StatusCode::protocol && !said_goodbye_;
  if (may_have_died && *listener_ != nullptr) obituary = (*listener_)->find_obituary(ranks_.peer);
  if (obituary && obituary->empty() && !obituary_awaited_.passed()) return false;
  const bool is_told = obituary && !obituary->empty();
  lose(is_told ? Status(StatusCode::peer_lost, printable(*obituary)) : end_);
  return true;
}

void Peer::flush() {
  if (status_.ok()) (void)output_.flush(*link_);
}

Result<ByteSpan> Peer::begin(const Frame& frame) {
  dropping_ = unwanted(frame);
  const bool is_of_message = FrameMessages::carries(frame.kind);
  if (is_of_message && messages_ != nullptr) return messages_->begin(frame, dropping_);
  const bool is_sign_of_life = frame.kind == FrameKind::credit && frame.message_bytes == 0;
  if (is_of_message && !is_sign_of_life) {
    return status_of(StatusCode::protocol,
                     "a message came by a link that carries none: the ranks have been set up with "
                     "different data planes");
  }
  if (dropping_) return ByteSpan();
  switch (frame.kind) {
    case FrameKind::abort:
    case FrameKind::report:
    case FrameKind::agreement:
      text_.resize(frame.message_bytes);
      return ByteSpan(text_);
    case FrameKind::farewell:
      STRETTO_RETURN_IF_ERROR(farewell_arrived(frame.key.group));
      return ByteSpan();
    default:
      return ByteSpan();
  }
}

// Whether a frame is about something that this rank has no part in any more.
bool Peer::unwanted(const Frame& frame) const {
  switch (frame.kind) {
    case FrameKind::message:
    case FrameKind::announce:
    case FrameKind::clear:
    case FrameKind::data:
    case FrameKind::piece:
      return leaving_ || abandoned_.contains(frame.key.group);
    case FrameKind::abort:  // It may end more than this group.
    case FrameKind::agreement: {
      const auto abandoned = abandoned_.find(frame.key.group);
      return leaving_ || (abandoned != abandoned_.end() && abandoned->second.forgotten);
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
  const auto abandoned = abandoned_.find(group);
  if (abandoned != abandoned_.end() && abandoned->second.forgotten) {
    abandoned_.erase(abandoned);
    return {};
  }
  if (farewells_.size() >= kFarewellsMax) {
    return status_of(StatusCode::protocol, "more than {} groups forgotten that are in use here",
                     kFarewellsMax);
  }
  farewells_.insert(group);
  return {};
}

// All of a frame has come: acts upon it.
Status Peer::end(const Frame& frame) {
  if (dropping_) return {};
  if (messages_ != nullptr && FrameMessages::carries(frame.kind)) {
    STRETTO_ASSIGN_OR_RETURN(const bool unexpected, messages_->end(frame));
    if (unexpected && *listener_ != nullptr) {
      (*listener_)->unexpected_message(ranks_.peer, frame.key, frame.operation);
    }
    return {};
  }
  switch (frame.kind) {
    case FrameKind::abort:
      abort_arrived(frame);
      return {};
    case FrameKind::inquiry:
      answer_inquiry(frame);
      return {};
    case FrameKind::report:
      report_arrived(frame);
      return {};
    case FrameKind::goodbye:
      said_goodbye_ = true;
      return hear_later(frame);
    case FrameKind::agreement:
    case FrameKind::farewell:
      return hear_later(frame);
    default:
      return {};
  }
}

std::string Peer::text() const {
  return printable({reinterpret_cast<const char*>(text_.data()), text_.size()});
}

void Peer::answer_inquiry(const Frame& frame) {
  // More inquiries than a correct peer leaves open get no answer, which might never be read.
  if (*listener_ == nullptr || output_.reports() >= static_cast<int>(kInquiriesMax)) return;
  const MessageKey key{.group = frame.key.group, .sequence = frame.key.sequence};
  std::string state =
      (*listener_)->describe_state(ranks_.peer, key.group, key.sequence, frame.operation);
  state.resize(std::min(state.size(), kReportTextBytes));
  output_.push(Frame{.kind = FrameKind::report, .key = key, .message_bytes = state.size()},
               std::as_bytes(std::span(state)));
}

void Peer::report_arrived(const Frame& frame) {
  const std::pair inquiry(frame.key.group, frame.key.sequence);
  // Only what has been asked for, and once.
  if (std::erase(inquiries_, inquiry) == 0 || *listener_ == nullptr) return;
  (*listener_)->state_reported(ranks_.peer, inquiry.first, inquiry.second, text());
}

void Peer::abort_arrived(const Frame& frame) {
  // The group may have been forgotten while the text came.
  if (*listener_ == nullptr || unwanted(frame)) return;
  const std::uint32_t code = frame.key.sequence;
  const bool known = code > 0 && code <= static_cast<std::uint32_t>(StatusCode::internal);
  std::optional<Rank> culprit;
  if (frame.key.segment < static_cast<std::uint32_t>(ranks_.count)) {
    culprit = static_cast<std::int32_t>(frame.key.segment);
  }
  const Status reason(known ? static_cast<StatusCode>(code) : StatusCode::aborted, text(), culprit);
  (*listener_)
      ->group_aborted(frame.key.group, ranks_.peer, reason,
                      static_cast<GroupStage>(frame.key.message));
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
  reader_.drop_payload();
  unsaid_.clear();
  inquiries_.clear();
  output_.clear(status_);
  plane_->lose(status_);
  abandoned_.clear();
  (void)hear();
  unheard_.clear();
  unheard_bytes_ = 0;
  farewells_.clear();
  if (*listener_ == nullptr) return;
  if (said_goodbye_) {
    (*listener_)->peer_left(ranks_.peer, status_);
  } else {
    (*listener_)->peer_lost(ranks_.peer, status_);
  }
}

}  // namespace stretto::transport
