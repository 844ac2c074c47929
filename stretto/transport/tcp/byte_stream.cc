// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/tcp/byte_stream.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace stretto::transport::tcp {

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
  const ssize_t written = ::sendmsg(socket(), &message, MSG_NOSIGNAL);
  if (written < 0) return {.error_number = errno};
  const auto taken = static_cast<std::size_t>(written);
  // Not taken entirely: the buffer is full.
  return {.bytes = taken, .error_number = taken < wanted ? EAGAIN : 0};
}

ByteStream::Moved SocketStream::read(ByteSpan into) {
  const ssize_t given = ::recv(socket(), into.data(), into.size(), 0);
  if (given < 0) return {.error_number = errno};
  return {.bytes = static_cast<std::size_t>(given)};
}

}  // namespace stretto::transport::tcp
