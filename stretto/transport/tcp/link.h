// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>

#include "stretto/base/file_descriptor.h"
#include "stretto/transport/link.h"

namespace stretto::transport::tcp {

// A link over a connected TCP socket (or any other stream socket).
class TcpLink : public Link {
 public:
  // Makes the socket non-blocking. Nothing of the stream may have been read beyond the handshake.
  static Result<std::unique_ptr<Link>> create(FileDescriptor socket);
  // What has been written still arrives, if the peer is there to take it.
  ~TcpLink() override;

  std::string_view name() const override { return "tcp"; }
  Result<std::size_t> write(std::span<const ConstByteSpan> pieces) override;
  Result<std::size_t> read(ByteSpan into) override;
  bool readable() const override { return readable_; }
  bool needs_poll() const override { return true; }
  int descriptor() const override { return socket_.get(); }
  void service() override;
  void notify() override {}

 private:
  explicit TcpLink(FileDescriptor socket) : socket_(std::move(socket)) {}

  FileDescriptor socket_;
  // Until the kernel says that it has no more, there may be more (edge triggered).
  bool readable_ = true;
  bool writable_ = true;
};

}  // namespace stretto::transport::tcp
