// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <span>
#include <string_view>
#include <utility>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"
#include "stretto/base/view.h"

namespace stretto::transport::tcp {

// How the bytes of a link go into a connected socket and come out of it: as they are
// (SocketStream), or encrypted (bootstrap/tls_stream). Nothing here blocks or raises SIGPIPE. Not
// thread safe.
class ByteStream {
 public:
  explicit ByteStream(FileDescriptor socket) : socket_(std::move(socket)) {}
  virtual ~ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  int socket() const { return socket_.get(); }
  // "tcp": what is on the wire, for messages.
  virtual std::string_view name() const = 0;

  // What a call has moved, and why it has not moved more.
  struct Moved {
    std::size_t bytes = 0;
    // As in errno. EAGAIN: the socket has no more room, or no more bytes; an event will tell when
    // that changes.
    int error_number = 0;
    // What has come is no stream of this kind; it fails from now on.
    Status violation = {};
  };
  // As Link::write() and Link::held_bytes().
  virtual Moved write(std::span<const ConstByteSpan> pieces) = 0;
  virtual std::size_t held_bytes() const { return 0; }
  // No bytes and no error: the stream has ended.
  virtual Moved read(ByteSpan into) = 0;

 private:
  FileDescriptor socket_;
};

// Bytes as they are.
class SocketStream final : public ByteStream {
 public:
  using ByteStream::ByteStream;
  std::string_view name() const override { return "tcp"; }
  Moved write(std::span<const ConstByteSpan> pieces) override;
  Moved read(ByteSpan into) override;
};

}  // namespace stretto::transport::tcp
