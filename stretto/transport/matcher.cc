// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/matcher.h"

#include <algorithm>
#include <cstring>

namespace stretto::transport {
namespace {

// A peer that announces receives for ever without a send to match is broken or hostile.
constexpr std::size_t kClearsMax = 1 << 18;
// Each announced message of a correct peer is a send in flight.
constexpr std::size_t kAnnouncedMax = 1 << 18;
// How much memory of past unexpected messages is kept for the next ones.
constexpr std::size_t kSpareMax = 64;
constexpr std::size_t kSpareBytesMax = 4 * kEagerBytes;

// Whether the clear for a receive of so many bytes is sent as soon as the receive is posted.
bool is_large(std::uint64_t bytes) { return bytes > kEagerBytes; }

}  // namespace

// Note [clears]
//
// Messages with equal keys find their receives in order. The clear of a large receive is sent when
// the receive is posted, that of a small one when its message is announced. So clears keep their
// order among large receives and among small ones, but a large receive's clear may come before that
// of an earlier small one. Therefore a clear, and the data that follows it, goes to the first of
// its class, large or small. The receiver then compares the sizes.

// The first receive of this key that a new message may be for.
std::vector<Matcher::Posted>::iterator Matcher::find_unannounced(const MessageKey& key) {
  return std::find_if(receives_.begin(), receives_.end(), [&](const Posted& posted) {
    return !posted.announced && posted.request->key == key;
  });
}

// A spare that a message of so many bytes fits into and mostly fills: the limit on unexpected
// messages counts their bytes, not the memory that holds them.
std::list<Matcher::Unexpected>::iterator Matcher::find_spare(std::size_t bytes) {
  return std::find_if(spare_.begin(), spare_.end(), [&](const Unexpected& spare) {
    const std::size_t capacity = spare.bytes.capacity();
    return capacity >= bytes && capacity <= bytes + bytes / 2 + kUnexpectedOverheadBytes;
  });
}

Matcher::Unexpected& Matcher::keep(const Frame& frame, std::size_t bytes) {
  const auto spare = bytes > 0 ? find_spare(bytes) : spare_.end();
  if (spare != spare_.end()) {
    spare_bytes_ -= spare->bytes.capacity();
    unexpected_.splice(unexpected_.end(), spare_, spare);
  } else {
    unexpected_.emplace_back();
  }
  Unexpected& unexpected = unexpected_.back();
  unexpected.frame = frame;
  unexpected.bytes.resize(bytes);
  unexpected.complete = frame.kind == FrameKind::announce;
  unexpected.claimed_by = nullptr;
  unexpected.orphaned = false;
  if (unexpected_count_ != nullptr) ++*unexpected_count_;
  if (unexpected.complete) {
    ++announced_;
  } else {
    unexpected_bytes_ += unexpected_cost_bytes(bytes);
  }
  return unexpected;
}

void Matcher::drop(Unexpected& unexpected) {
  if (unexpected_count_ != nullptr) --*unexpected_count_;
  if (unexpected.frame.kind == FrameKind::announce) {
    --announced_;
  } else {
    unexpected_bytes_ -= unexpected_cost_bytes(unexpected.bytes.size());
  }
  const auto place =
      std::find_if(unexpected_.begin(), unexpected_.end(),
                   [&](const Unexpected& candidate) { return &candidate == &unexpected; });
  const std::size_t capacity = unexpected.bytes.capacity();
  if (capacity == 0 || capacity > kSpareBytesMax) {
    unexpected_.erase(place);
    return;
  }
  spare_bytes_ += capacity;
  spare_.splice(spare_.begin(), unexpected_, place);
  // Drops those into which nothing has fitted for longest.
  while (spare_.size() > kSpareMax || spare_bytes_ > kSpareBytesMax) {
    spare_bytes_ -= spare_.back().bytes.capacity();
    spare_.pop_back();
  }
}

bool Matcher::post_receive(Request& request) {
  const auto found =
      std::find_if(unexpected_.begin(), unexpected_.end(), [&](const Unexpected& unexpected) {
        return unexpected.frame.key == request.key && unexpected.claimed_by == nullptr &&
               !unexpected.orphaned;
      });
  if (found == unexpected_.end()) {
    receives_.push_back({.request = &request});
    return is_large(request.incoming.size());
  }
  if (!agree(request, found->frame, self_)) {
    // The message is used up, as when it comes after its receive.
    found->orphaned = true;
    if (found->complete) drop(*found);
    return false;
  }
  if (found->frame.kind == FrameKind::announce) {
    drop(*found);
    receives_.push_back({.request = &request, .announced = true});
    return true;
  }
  if (found->complete) {
    hand_over(*found, request);
  } else {
    found->claimed_by = &request;
  }
  return false;
}

bool Matcher::has_arrived(const MessageKey& key) const {
  return std::any_of(unexpected_.begin(), unexpected_.end(), [&](const Unexpected& unexpected) {
    return unexpected.frame.key == key && unexpected.complete && unexpected.claimed_by == nullptr;
  });
}

Request* Matcher::message_header(const Frame& frame, Unexpected** unexpected) {
  *unexpected = nullptr;
  const auto found = find_unannounced(frame.key);
  if (found != receives_.end()) {
    Request* request = found->request;
    receives_.erase(found);
    return agree(*request, frame, self_) ? request : nullptr;
  }
  *unexpected = &keep(frame, frame.message_bytes);
  return nullptr;
}

Request* Matcher::data_header(const Frame& frame) {
  const auto found = std::find_if(receives_.begin(), receives_.end(), [&](const Posted& posted) {
    return posted.request->key == frame.key &&
           is_large(posted.request->incoming.size()) == is_large(frame.message_bytes);
  });
  // Nothing posted: the receive has ended with mismatch since its clear went out.
  if (found == receives_.end()) return nullptr;
  Request* request = found->request;
  receives_.erase(found);
  return agree(*request, frame, self_) ? request : nullptr;
}

Result<Matcher::Announcement> Matcher::announced(const Frame& frame) {
  const auto found = find_unannounced(frame.key);
  if (found == receives_.end()) {
    if (announced_ >= kAnnouncedMax) {
      return status_of(StatusCode::protocol, "more than {} messages announced that nobody receives",
                       kAnnouncedMax);
    }
    keep(frame, 0);
    return Announcement::unexpected;
  }
  found->announced = true;
  if (!agree(*found->request, frame, self_)) {
    receives_.erase(found);
    return Announcement::settled;
  }
  // The clear of a large receive and this announcement have crossed: the data follows by itself.
  const bool cleared = is_large(found->request->incoming.size());
  return cleared ? Announcement::settled : Announcement::clear;
}

bool Matcher::unexpected_complete(Unexpected& unexpected) {
  unexpected.complete = true;
  if (unexpected.orphaned) {
    drop(unexpected);
    return false;
  }
  if (unexpected.claimed_by == nullptr) return true;
  hand_over(unexpected, *unexpected.claimed_by);
  return false;
}

// Ends a receive whose message is all here.
void Matcher::hand_over(Unexpected& unexpected, Request& request) {
  if (!unexpected.bytes.empty()) {
    std::memcpy(request.incoming.data(), unexpected.bytes.data(), unexpected.bytes.size());
  }
  drop(unexpected);
  complete(request, Status());
}

bool Matcher::post_waiting_send(Request& request) {
  const auto found = std::find_if(clears_.begin(), clears_.end(), [&](const Clear& clear) {
    return clear.key == request.key &&
           is_large(clear.message_bytes) == is_large(request.outgoing.size());
  });
  if (found == clears_.end()) {
    waiting_sends_.push_back(&request);
    return false;
  }
  clears_.erase(found);
  return true;
}

Result<Request*> Matcher::clear_arrived(const Frame& frame) {
  const auto found =
      std::find_if(waiting_sends_.begin(), waiting_sends_.end(), [&](const Request* request) {
        return request->key == frame.key &&
               is_large(request->outgoing.size()) == is_large(frame.message_bytes);
      });
  if (found != waiting_sends_.end()) {
    Request* request = *found;
    waiting_sends_.erase(found);
    return request;
  }
  if (clears_.size() >= kClearsMax) {
    return status_of(StatusCode::protocol, "more than {} receives announced that nobody serves",
                     kClearsMax);
  }
  clears_.push_back({.key = frame.key, .message_bytes = frame.message_bytes});
  return static_cast<Request*>(nullptr);
}

void Matcher::end_requests(const std::uint64_t* group, const Status& reason) {
  const auto concerned = [&](const MessageKey& key) {
    return group == nullptr || key.group == *group;
  };
  std::erase_if(receives_, [&](const Posted& posted) {
    if (!concerned(posted.request->key)) return false;
    complete(*posted.request, reason);
    return true;
  });
  std::erase_if(waiting_sends_, [&](Request* request) {
    if (!concerned(request->key)) return false;
    complete(*request, reason);
    return true;
  });
  std::erase_if(clears_, [&](const Clear& clear) { return concerned(clear.key); });
  for (auto next = unexpected_.begin(); next != unexpected_.end();) {
    Unexpected& unexpected = *next++;
    if (!concerned(unexpected.frame.key)) continue;
    const bool usable = unexpected.complete && unexpected.frame.kind == FrameKind::message;
    if (group == nullptr && usable) continue;
    if (unexpected.claimed_by != nullptr) {
      complete(*std::exchange(unexpected.claimed_by, nullptr), reason);
    }
    // An incomplete message stays until its bytes are in: the parser still writes to it.
    unexpected.orphaned = true;
    if (unexpected.complete) drop(unexpected);
  }
  if (group != nullptr) return;
  spare_.clear();
  spare_bytes_ = 0;
}

std::optional<UnexpectedMessage> Matcher::find_conflict(
    std::uint64_t group, std::uint32_t sequence, const OperationDescriptor& operation) const {
  for (const Unexpected& unexpected : unexpected_) {
    const MessageKey& key = unexpected.frame.key;
    if (key.group != group || key.sequence != sequence || unexpected.frame.operation == operation ||
        unexpected.orphaned) {
      continue;
    }
    return UnexpectedMessage{.from = peer_, .key = key, .operation = unexpected.frame.operation};
  }
  return std::nullopt;
}

}  // namespace stretto::transport
