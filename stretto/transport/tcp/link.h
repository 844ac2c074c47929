// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"
#include "stretto/base/view.h"
#include "stretto/transport/link.h"
#include "stretto/transport/tcp/failure_detector.h"

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
  // What is on the wire, such as "tcp", for texts.
  virtual std::string_view name() const = 0;

  // What a call has moved, and why it has not moved more.
  struct Moved {
    std::size_t bytes = 0;
    // As in errno. EAGAIN: the socket has no more room, or no more bytes; an event will tell when
    // that changes.
    int error_number = 0;
    // Not ok: what has come is no stream of this kind; it fails from now on.
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

// A link over a connected TCP socket (or any other stream socket).
class TcpLink : public Link {
 public:
  // Nothing of the stream may have been read beyond the handshake. `network_timeout`: how long the
  // network may be silent before the peer counts as lost; zero: the kernel decides.
  explicit TcpLink(std::unique_ptr<ByteStream> stream, Duration network_timeout = Duration::zero());
  // What has been written still arrives, if the peer is there to take it; waits as finish() says.
  ~TcpLink() override;

  std::string_view name() const override { return stream_->name(); }
  Result<std::size_t> write(std::span<const ConstByteSpan> pieces) override;
  std::size_t held_bytes() const override { return stream_->held_bytes(); }
  Result<std::size_t> read(ByteSpan into) override;
  bool readable() const override { return readable_; }
  // Whether write() may take something. Costs no system call.
  bool writable() const { return writable_; }
  // Whether read() has found that the peer has closed the connection in good order.
  bool was_closed() const { return was_closed_; }
  bool needs_poll() const override { return true; }
  int descriptor() const override { return socket(); }
  void service(std::uint32_t events) override;
  Contact check_contact(TimePoint now) override;
  bool finish() override;
  void disconnect() override;

 private:
  int socket() const { return stream_->socket(); }
  // Whether signs of life should have come back, and have not.
  bool is_silent() const { return detector_.contact().silent; }
  Status failure(std::string_view call, int error_number) const;

  std::unique_ptr<ByteStream> stream_;
  FailureDetector detector_;
  Status write_failure_;  // The kernel reports it once; read() returns it.
  // Until the kernel says that it has no more, there may be more (edge triggered).
  bool readable_ = true;
  bool writable_ = true;
  bool ending_ = false;  // The peer sends no more: behind its last bytes read() finds the end.
  bool was_closed_ = false;
  std::optional<TimePoint> last_progress_;  // When the peer's kernel last took bytes, since
                                            // finish().
  int unsent_bytes_ = std::numeric_limits<int>::max();
};

}  // namespace stretto::transport::tcp
