// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/tcp/striped_link.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "stretto/base/little_endian.h"
#include "stretto/base/poll.h"

namespace stretto::transport::tcp {
namespace {

// How long the others may bring nothing after one connection has ended. A peer that shuts one down
// in good order shuts all down, after its last bytes, which a slow network may hold up. The failure
// detectors watch over silent ones. A reset may hit one connection and leave the others open.
constexpr std::chrono::seconds kQuietAfterEnd(60);
constexpr std::chrono::seconds kQuietAfterReset(1);
constexpr std::size_t kPieces = 32;
constexpr std::uint64_t kBehindBytesMax = 4 * StripedLink::kBlockBytes;
// Headers of a stripe at a time. A peer that sends nothing but signs of life, without end, must not
// keep the others waiting.
constexpr int kHeadersPerTurn = 1024;

std::size_t total_bytes(std::span<const ConstByteSpan> pieces) {
  std::size_t bytes = 0;
  for (const ConstByteSpan piece : pieces) bytes += piece.size();
  return bytes;
}

}  // namespace

Result<std::unique_ptr<Link>> StripedLink::create(std::vector<std::unique_ptr<TcpLink>> stripes) {
  std::unique_ptr<StripedLink> link(new StripedLink(std::move(stripes)));
  STRETTO_RETURN_IF_ERROR(link->open_poll());
  return std::unique_ptr<Link>(std::move(link));
}

StripedLink::StripedLink(std::vector<std::unique_ptr<TcpLink>> stripes)
    : name_(fmt::format("{} by {} connections", stripes.front()->name(), stripes.size())) {
  for (auto& link : stripes) stripes_.push_back({.link = std::move(link), .ended = {}});
}

Status StripedLink::open_poll() {
  poll_ = FileDescriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (!poll_.valid()) return system_status("epoll_create1");
  for (std::size_t i = 0; i < stripes_.size(); ++i) {
    STRETTO_RETURN_IF_ERROR(watch(poll_.get(), stripes_[i].link->descriptor(),
                                  EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, i));
  }
  return {};
}

void StripedLink::service(std::uint32_t /*events*/) {
  std::array<epoll_event, 16> events;
  int count = 0;
  do {
    count = ::epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      stripes_[event.data.u64].link->service(event.events);
    }
  } while (count == static_cast<int>(events.size()));
}

// Of the stripes that have room, the one that has been given the fewest bytes. If they took turns,
// one could get all messages, and another all credit between them.
StripedLink::Stripe* StripedLink::next_writable() {
  Stripe* next = nullptr;
  for (Stripe& stripe : stripes_) {
    if (!write_sign(stripe) || !stripe.link->writable()) continue;
    if (next == nullptr || stripe.given_bytes < next->given_bytes) next = &stripe;
  }
  return next;
}

void StripedLink::begin_block(Stripe& stripe, std::size_t bytes) {
  output_ = {.stripe = &stripe, .left_bytes = bytes};
  stripe.given_bytes += bytes;
  // A stripe that had no room for long must not get everything once it has.
  for (Stripe& other : stripes_) {
    other.given_bytes =
        std::max(other.given_bytes + kBehindBytesMax, stripe.given_bytes) - kBehindBytesMax;
  }
  store_little_endian(output_.header.data(), next_output_++);
  store_little_endian(output_.header.data() + 4, static_cast<std::uint32_t>(bytes));
}

// Writes the rest of a sign of life. Returns whether none is left. A failure shows when the stripe
// is read from.
bool StripedLink::write_sign(Stripe& stripe) {
  if (stripe.sign_left_bytes == 0) return true;
  static constexpr Header kSign{};
  const std::array<ConstByteSpan, 1> left{std::span(kSign).last(stripe.sign_left_bytes)};
  const Result<std::size_t> written = stripe.link->write(left);
  if (written.ok()) stripe.sign_left_bytes -= written.value();
  return stripe.sign_left_bytes == 0;
}

// A block's length promises how many bytes follow, not which. If its connection does not take them
// all now, the next bytes that are written go there, whatever they are.
Result<std::size_t> StripedLink::write(std::span<const ConstByteSpan> pieces) {
  const std::size_t wanted = total_bytes(pieces);
  std::size_t taken = 0;
  while (taken < wanted) {
    if (output_.stripe == nullptr) {
      Stripe* const stripe = next_writable();
      if (stripe == nullptr) break;
      begin_block(*stripe, std::min(wanted - taken, kBlockBytes));
    }
    const Result<std::size_t> written = write_block(pieces, taken);
    if (!written.ok()) return written;
    taken += written.value();
    if (output_.stripe != nullptr) break;
  }
  return taken;
}

// Goes on with the block that has begun, with the bytes of `pieces` after the first `skip`. Returns
// how many of them are written.
Result<std::size_t> StripedLink::write_block(std::span<const ConstByteSpan> pieces,
                                             std::size_t skip) {
  std::array<ConstByteSpan, kPieces> of_block;
  std::size_t count = 0;
  const std::size_t header_left = sizeof(Header) - output_.header_bytes;
  if (header_left > 0) of_block[count++] = std::span(output_.header).last(header_left);
  std::size_t room = output_.left_bytes;
  for (const ConstByteSpan piece : pieces) {
    const std::size_t skipped = std::min(skip, piece.size());
    skip -= skipped;
    const std::size_t bytes = std::min(room, piece.size() - skipped);
    if (bytes == 0) continue;
    if (count == kPieces) break;
    of_block[count++] = piece.subspan(skipped, bytes);
    room -= bytes;
  }
  const Result<std::size_t> written = output_.stripe->link->write(std::span(of_block).first(count));
  if (!written.ok()) return written;
  const std::size_t of_header = std::min(header_left, written.value());
  const std::size_t of_payload = written.value() - of_header;
  output_.header_bytes += of_header;
  output_.left_bytes -= of_payload;
  if (output_.header_bytes == sizeof(Header) && output_.left_bytes == 0) output_ = {};
  return of_payload;
}

std::size_t StripedLink::held_bytes() const {
  if (output_.stripe == nullptr) return 0;
  const std::size_t held = output_.stripe->link->held_bytes();
  return held - std::min(held, sizeof(Header) - output_.header_bytes);
}

bool StripedLink::readable() const {
  if (gives_up_) return true;
  if (input_ != nullptr) return input_->link->readable();
  return std::ranges::any_of(stripes_, &Stripe::can_read_header);
}

Result<std::size_t> StripedLink::read(ByteSpan into) {
  if (input_ == nullptr) STRETTO_RETURN_IF_ERROR(look_for_next());
  if (input_ == nullptr) return std::size_t{0};
  const std::size_t bytes = std::min<std::size_t>(into.size(), input_->left_bytes);
  const Result<std::size_t> given = input_->link->read(into.first(bytes));
  if (!given.ok()) return given;
  if (given.value() > 0) {
    quiet_since_.reset();
    gives_up_ = false;
  }
  input_->left_bytes -= static_cast<std::uint32_t>(given.value());
  if (input_->left_bytes > 0) return given;
  input_->header_bytes = 0;
  input_ = nullptr;
  ++next_input_;
  return given;
}

// Finds the stripe that has the next block, if it has come.
Status StripedLink::look_for_next() {
  for (Stripe& stripe : stripes_) {
    for (int turn = 0; turn < kHeadersPerTurn && stripe.can_read_header(); ++turn) {
      STRETTO_RETURN_IF_ERROR(read_header(stripe));
    }
    if (stripe.has_header() && stripe.number == next_input_) {
      input_ = &stripe;
      return {};
    }
  }
  if (std::ranges::all_of(stripes_, &Stripe::has_header)) {
    return status_of(StatusCode::protocol,
                     "its {} connections bring other blocks than number {}, which is next",
                     stripes_.size(), next_input_);
  }
  return end_of_stream();
}

// The end of a connection counts only when what has come by the others has been read.
Status StripedLink::read_header(Stripe& stripe) {
  const Result<std::size_t> given =
      stripe.link->read(std::span(stripe.header).subspan(stripe.header_bytes));
  if (given.status().code() == StatusCode::protocol) return given.status();
  if (!given.ok()) {
    stripe.ended = given.status();
    return {};
  }
  stripe.header_bytes += given.value();
  return stripe.has_header() ? take_header(stripe) : Status();
}

Status StripedLink::take_header(Stripe& stripe) const {
  stripe.number = load_little_endian<std::uint32_t>(stripe.header.data());
  stripe.left_bytes = load_little_endian<std::uint32_t>(stripe.header.data() + 4);
  if (stripe.left_bytes == 0) {
    stripe.header_bytes = 0;
    return {};
  }
  // Numbers wrap around.
  const bool is_past = stripe.number - next_input_ > std::numeric_limits<std::uint32_t>::max() / 2;
  if (stripe.left_bytes <= kBlockBytes && !is_past) return {};
  return status_of(StatusCode::protocol,
                   "block {} of {} bytes came by one of several connections, where {} is next",
                   stripe.number, stripe.left_bytes, next_input_);
}

// Ok while more may come.
Status StripedLink::end_of_stream() const {
  const auto has_ended = [](const Stripe& stripe) { return !stripe.ended.ok(); };
  const auto first = std::ranges::find_if(stripes_, has_ended);
  if (first == stripes_.end()) return {};
  const bool all = std::ranges::all_of(stripes_, has_ended);
  return all || gives_up_ ? first->ended : Status();
}

Link::Contact StripedLink::check_contact(TimePoint now) {
  Contact contact;
  bool was_reset = false;
  for (Stripe& stripe : stripes_) {
    const Contact of_stripe = stripe.link->check_contact(now);
    contact.silence = std::max(contact.silence, of_stripe.silence);
    contact.silent = contact.silent || of_stripe.silent;
    contact.lost = contact.lost || of_stripe.lost;
    contact.heard = contact.heard || of_stripe.heard;
    contact.waiting_bytes += of_stripe.waiting_bytes;
    contact.sent_rate += of_stripe.sent_rate;
    contact.received_rate += of_stripe.received_rate;
    if (!stripe.ended.ok() && !quiet_since_) quiet_since_ = now;
    was_reset = was_reset || (!stripe.ended.ok() && !stripe.link->was_closed());
    if (!of_stripe.wants_sign) continue;
    // Inside a block the bytes that are written next serve as the sign: the caller sends some.
    if (output_.stripe == &stripe) {
      contact.wants_sign = true;
      continue;
    }
    if (stripe.sign_left_bytes == 0) stripe.sign_left_bytes = sizeof(Header);
    (void)write_sign(stripe);
  }
  gives_up_ =
      quiet_since_ && now - *quiet_since_ >= (was_reset ? kQuietAfterReset : kQuietAfterEnd);
  return contact;
}

bool StripedLink::finish() {
  bool done = true;
  for (const Stripe& stripe : stripes_) done = stripe.link->finish() && done;
  return done;
}

void StripedLink::disconnect() {
  for (const Stripe& stripe : stripes_) stripe.link->disconnect();
}

}  // namespace stretto::transport::tcp
