// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "stretto/base/file_descriptor.h"

namespace stretto::transport::shm {

// What ranks of a host say to each other over their Unix socket: 16 bytes, sometimes with a
// descriptor.
struct Notice {
  enum class Kind : std::uint32_t {
    doorbell = 1,  // Wake up.
    region = 2,    // Here is region `region`: `bytes` bytes behind the descriptor.
    release = 3,   // Region `region` is gone.
    proof = 4,     // At address `bytes` of my process lies the number `region`.
  };
  Kind kind = Kind::doorbell;
  std::uint32_t region = 0;
  std::uint64_t bytes = 0;
};
static_assert(sizeof(Notice) == 16, "travels as it lies in memory");

// The Unix socket between two ranks of a host. The kernel closes it when a process ends, however it
// ends, so its end is the end of the peer. No function blocks. Not thread safe.
//
// If this process has no room for the descriptor of a notice, the notice stays in the socket, with
// everything behind it, until there is room.
class Channel {
 public:
  struct Received {
    Notice notice;
    FileDescriptor descriptor;
  };

  explicit Channel(FileDescriptor socket) : socket_(std::move(socket)) {}
  // Ends the stream, even if a forked child has a copy of the socket.
  ~Channel();

  // Sends now, or keeps the notice until flush() if the socket is full.
  void send(const Notice& notice, std::shared_ptr<const FileDescriptor> file = nullptr);
  // Sends what is left to send. To be called now and then.
  void flush();
  // Takes back the notice of a region that has not been sent yet. Returns whether there was one:
  // then the peer has never heard of the region, and need not hear of its end.
  bool take_back(std::uint32_t region);
  // Whether something is left to send.
  bool has_pending() const { return !pending_.empty(); }
  // Sends a doorbell, or drops it if the socket is full: the peer then has something to read
  // already, or has no room for a file and sleeps for a tenth of a second at most.
  void ring();

  // The next notice, if one is here and there is room for its file. Sets closed() at the end of the
  // stream, or if something else than a notice comes.
  std::optional<Received> receive();
  // The notice for whose file there was no room when receive() was last called.
  struct Stuck {
    Notice notice;
    int error_number = 0;
  };
  const std::optional<Stuck>& stuck() const { return stuck_; }

  bool closed() const { return closed_; }
  // Ends the stream for both.
  void shut_down();
  int descriptor() const { return socket_.get(); }

 private:
  struct Pending {
    Notice notice;
    std::shared_ptr<const FileDescriptor> file;
  };
  bool try_send(const Notice& notice, const FileDescriptor* file);

  FileDescriptor socket_;
  std::vector<Pending> pending_;
  std::optional<Stuck> stuck_;
  bool closed_ = false;
};

}  // namespace stretto::transport::shm
