// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/tcp/link.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace stretto::transport::tcp {
namespace {

bool would_block(int error_number) {
  return error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == EINTR;
}

}  // namespace

Result<std::unique_ptr<Link>> TcpLink::create(FileDescriptor socket) {
  const int flags = ::fcntl(socket.get(), F_GETFL);
  if (flags < 0 || ::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return system_status("fcntl");
  }
  return std::unique_ptr<Link>(new TcpLink(std::move(socket)));
}

// A socket that is closed with bytes unread resets the connection, and what is still on its way to
// the peer is lost: so the end is announced first, and what is here is taken away. Bounded, since
// the peer may send without end.
TcpLink::~TcpLink() {
  (void)::shutdown(socket_.get(), SHUT_WR);
  std::array<std::byte, 16 * 1024> ignored;
  for (int turn = 0; turn < 64; ++turn) {
    if (::recv(socket_.get(), ignored.data(), ignored.size(), 0) <= 0) break;
  }
}

Result<std::size_t> TcpLink::write(std::span<const ConstByteSpan> pieces) {
  if (!writable_) return std::size_t{0};
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
  const ssize_t written = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  if (written < 0 && !would_block(errno)) return system_status("send");
  // Not taken entirely: the buffer is full, and an event will say when it no longer is.
  const std::size_t taken = written < 0 ? 0 : static_cast<std::size_t>(written);
  if (taken < wanted && !(written < 0 && errno == EINTR)) writable_ = false;
  return taken;
}

Result<std::size_t> TcpLink::read(ByteSpan into) {
  const ssize_t given = ::recv(socket_.get(), into.data(), into.size(), 0);
  if (given > 0) return static_cast<std::size_t>(given);
  if (given == 0) return status_of(StatusCode::peer_lost, "the connection was closed");
  if (errno == EINTR) return std::size_t{0};
  if (!would_block(errno)) {
    return system_status("recv");
  }
  readable_ = false;
  return std::size_t{0};
}

void TcpLink::service() {
  readable_ = true;
  writable_ = true;
}

}  // namespace stretto::transport::tcp
