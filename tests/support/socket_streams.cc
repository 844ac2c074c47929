// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/support/socket_streams.h"

#include <sys/ioctl.h>
#include <sys/socket.h>

#include <utility>

#include "stretto/base/rank_vector.h"

namespace stretto::transport {
namespace {

// Says nothing of the peer's end.
class SocketStream final : public Link {
 public:
  explicit SocketStream(FileDescriptor socket) : socket_(std::move(socket)) {}

  std::string_view name() const override { return "socket"; }
  Result<std::size_t> write(std::span<const ConstByteSpan> pieces) override {
    const ssize_t count = ::send(socket_.get(), pieces.front().data(), pieces.front().size(),
                                 MSG_DONTWAIT | MSG_NOSIGNAL);
    return count < 0 ? std::size_t{0} : static_cast<std::size_t>(count);
  }
  Result<std::size_t> read(ByteSpan into) override {
    const ssize_t count = ::recv(socket_.get(), into.data(), into.size(), MSG_DONTWAIT);
    if (count < 0) return std::size_t{0};
    read_bytes_ += static_cast<std::uint64_t>(count);
    return static_cast<std::size_t>(count);
  }
  bool readable() const override { return true; }

  // Of bytes: those of a Unix socket are there when they are sent.
  std::uint64_t arrivals() const {
    int waiting = 0;
    (void)::ioctl(socket_.get(), FIONREAD, &waiting);
    return read_bytes_ + static_cast<std::uint64_t>(waiting);
  }
  bool has_read(std::uint64_t arrivals) const { return read_bytes_ >= arrivals; }

 private:
  FileDescriptor socket_;
  std::uint64_t read_bytes_ = 0;
};

class SocketStreams final : public Streams {
 public:
  explicit SocketStreams(std::vector<FileDescriptor> sockets) {
    for (FileDescriptor& socket : sockets) {
      streams_.push_back(socket.valid() ? std::make_unique<SocketStream>(std::move(socket))
                                        : nullptr);
    }
  }

  Link* to(Rank peer) override { return streams_[peer].get(); }
  bool progress() override { return false; }
  // What a socket has taken arrives.
  bool has_output(Rank) const override { return false; }
  std::uint64_t arrivals(Rank peer) const override { return streams_[peer]->arrivals(); }
  bool has_read(Rank peer, std::uint64_t arrivals) const override {
    return streams_[peer]->has_read(arrivals);
  }

 private:
  RankVector<std::unique_ptr<SocketStream>> streams_;
};

}  // namespace

std::unique_ptr<Streams> make_socket_streams(std::vector<FileDescriptor> sockets) {
  return std::make_unique<SocketStreams>(std::move(sockets));
}

}  // namespace stretto::transport
