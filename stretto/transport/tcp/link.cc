// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/tcp/link.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "stretto/base/would_block.h"

namespace stretto::transport::tcp {
namespace {

// Joining guards its connections by keepalive and TCP_USER_TIMEOUT, which would end this one while
// the peer has no room (see failure_detector.cc).
void leave_to_detector(int socket) {
  const int off = 0;
  (void)::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &off, sizeof(off));
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &off, sizeof(off));
}

}  // namespace

ByteStream::Moved SocketStream::write(std::span<const ConstByteSpan> pieces) {
  std::array<iovec, 32> vectors;
  std::size_t count = 0;
  std::size_t wanted = 0;
  for (const ConstByteSpan piece : pieces.first(std::min(pieces.size(), vectors.size()))) {
    vectors[count++] = {.iov_base = const_cast<std::byte*>(piece.data()), .iov_len = piece.size()};
    wanted += piece.size();
  }
  const msghdr message{.msg_name = nullptr,
                       .msg_namelen = 0,
                       .msg_iov = vectors.data(),
                       .msg_iovlen = count,
                       .msg_control = nullptr,
                       .msg_controllen = 0,
                       .msg_flags = 0};
  const ssize_t written = ::sendmsg(socket(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (written < 0) return {.error_number = errno};
  const auto taken = static_cast<std::size_t>(written);
  // Not taken entirely: the buffer is full.
  return {.bytes = taken, .error_number = taken < wanted ? EAGAIN : 0};
}

ByteStream::Moved SocketStream::read(ByteSpan into) {
  const ssize_t given = ::recv(socket(), into.data(), into.size(), MSG_DONTWAIT);
  if (given < 0) return {.error_number = errno};
  const auto taken = static_cast<std::size_t>(given);
  // Not filled: no more bytes are there, but perhaps the end of the stream.
  return {.bytes = taken, .error_number = taken > 0 && taken < into.size() ? EAGAIN : 0};
}

TcpLink::TcpLink(std::unique_ptr<ByteStream> stream, Duration network_timeout)
    : stream_(std::move(stream)), detector_(network_timeout) {
  leave_to_detector(socket());
  // When the network is back, the kernel should notice before the time is up.
  if (detector_.gives_up()) limit_retransmission_pause(socket(), network_timeout / 8);
}

// No event tells that the peer's kernel has taken something.
TcpLink::~TcpLink() {
  const bool was_asked = last_progress_.has_value();
  while (!was_asked && !finish()) {
    pollfd arrival{.fd = socket(), .events = POLLIN, .revents = 0};
    (void)::poll(&arrival, 1, 1);
  }
}

// A socket that is closed with bytes unread, or that receives more later, resets the connection,
// and what its kernel has not sent yet is lost. So the end is announced first, and what comes is
// read and dropped until the peer's kernel has everything, or the peer is gone, or its process
// takes nothing for a second. A network that is silent may come back, until the peer is given up.
bool TcpLink::finish() {
  const TimePoint now = Clock::now();
  if (!last_progress_) {
    (void)::shutdown(socket(), SHUT_WR);
    last_progress_ = now;
  }
  (void)check_contact(now);
  if (detector_.has_given_up()) return true;
  std::array<std::byte, 64 * 1024> ignored;
  const ssize_t given = ::recv(socket(), ignored.data(), ignored.size(), MSG_DONTWAIT);
  if (given == 0 || (given < 0 && !would_block(errno))) return true;
  int left = 0;
  if (::ioctl(socket(), SIOCOUTQ, &left) != 0 || left == 0) return true;
  if (left < unsent_bytes_) last_progress_ = now;
  unsent_bytes_ = left;
  if (now - *last_progress_ < std::chrono::seconds(1)) return false;
  const auto state = read_connection_state(socket());
  return !detector_.gives_up() || !state || !state->window_open;
}

Result<std::size_t> TcpLink::write(std::span<const ConstByteSpan> pieces) {
  if (!writable_) return std::size_t{0};
  const ByteStream::Moved moved = stream_->write(pieces);
  if (moved.error_number == 0 && moved.violation.ok()) return moved.bytes;
  if (!moved.violation.ok() || !would_block(moved.error_number)) {
    const Status status =
        moved.violation.ok() ? failure("send", moved.error_number) : moved.violation;
    // After a broken pipe, read() finds a reason that says more.
    if (moved.error_number != EPIPE && write_failure_.ok()) write_failure_ = status;
    return status;
  }
  // An event will say when there is room again.
  if (moved.error_number != EINTR) writable_ = false;
  return moved.bytes;
}

Result<std::size_t> TcpLink::read(ByteSpan into) {
  const ByteStream::Moved moved = stream_->read(into);
  if (moved.bytes > 0) {
    // What comes from now on makes an event, and so does an end that epoll has not told of yet.
    if (would_block(moved.error_number) && !ending_) readable_ = false;
    return moved.bytes;
  }
  if (!moved.violation.ok()) return moved.violation;
  if (moved.error_number == EINTR) return std::size_t{0};
  if (!would_block(moved.error_number)) {
    if (!write_failure_.ok()) return write_failure_;
    was_closed_ = moved.error_number == 0;
    return failure("recv", moved.error_number);
  }
  readable_ = false;
  return std::size_t{0};
}

// Why the connection has ended; error number 0: the peer has closed it.
Status TcpLink::failure(std::string_view call, int error_number) const {
  if (error_number == 0) return status_of(StatusCode::peer_lost, "the connection was closed");
  const Status cause = system_status(call, error_number);
  switch (error_number) {
    case ECONNRESET:
      if (!is_silent()) {
        return status_of(StatusCode::peer_lost,
                         "{}: its process has ended, or its host has started anew, or it has given "
                         "up this rank",
                         cause.message());
      }
      [[fallthrough]];
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN: {
      // Without a limit nobody has measured the silence.
      const std::string silence = detector_.gives_up()
                                      ? fmt::format("nothing had come back for {:.1f} s: ",
                                                    seconds(detector_.contact().silence))
                                      : "";
      return status_of(StatusCode::peer_lost, "{}; {}the network to it, or its host, was down",
                       cause.message(), silence);
    }
    default:
      break;
  }
  return cause;
}

Link::Contact TcpLink::check_contact(TimePoint now) {
  if (detector_.due(now)) {
    if (const auto state = read_connection_state(socket())) {
      // If an event was lost, none would come to tell of these.
      pollfd ready{.fd = socket(), .events = POLLIN | POLLOUT, .revents = 0};
      if ((!readable_ || !writable_) && ::poll(&ready, 1, 0) > 0) {
        readable_ = readable_ || (ready.revents & ~POLLOUT) != 0;
        writable_ = writable_ || (ready.revents & POLLOUT) != 0;
      }
      return detector_.look(now, *state);
    }
  }
  return detector_.contact();
}

void TcpLink::disconnect() {
  // Resets the connection at once, also where another process has a copy of the socket.
  const sockaddr nowhere{.sa_family = AF_UNSPEC, .sa_data = {}};
  (void)::connect(socket(), &nowhere, sizeof(nowhere));
}

void TcpLink::service(std::uint32_t events) {
  readable_ = true;
  writable_ = true;
  ending_ = ending_ || (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
}

}  // namespace stretto::transport::tcp
