// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"

namespace stretto::transport::shm {

// What ranks of a host say to each other over their Unix socket: 16 bytes, sometimes with a
// descriptor.
struct Notice {
  enum class Kind : std::uint32_t {
    doorbell = 1,  // Wake up.
    inbox = 2,     // Here is my inbox: `bytes` bytes behind the descriptor.
    region = 3,    // Here is region `region`: `bytes` bytes behind the descriptor.
    release = 4,   // Region `region` is gone.
    proof = 5,     // At address `bytes` of my process lies the number `region`.
  };
  Kind kind = Kind::doorbell;
  std::uint32_t region = 0;
  std::uint64_t bytes = 0;
};
static_assert(sizeof(Notice) == 16, "travels as it lies in memory");

// The Unix socket between two ranks of a host. The kernel closes it when a process ends, however it
// ends, so its end is the end of the peer. Not thread safe.
class Channel {
 public:
  struct Received {
    Notice notice;
    FileDescriptor descriptor;
  };

  // Makes the socket non-blocking.
  static Result<std::shared_ptr<Channel>> create(FileDescriptor socket);

  // Sends now, or keeps the notice, and with it the file, until flush() if the socket is full.
  void send(const Notice& notice, std::shared_ptr<const FileDescriptor> file = nullptr);
  void flush();
  // Takes back the notice of a region that has not been sent yet, and with it the file. False:
  // there is none.
  bool take_back(std::uint32_t region);
  // A doorbell that finds the socket full is dropped: the peer has something to read already.
  void ring();

  // The next notice, if one is here. Sets closed() at the end of the stream or at nonsense.
  std::optional<Received> receive();
  // The next notice of `kind`; waits for it. For setting up.
  Result<Received> wait_for(Notice::Kind kind, Deadline deadline);

  bool closed() const { return closed_; }
  int descriptor() const { return socket_.get(); }

 private:
  struct Pending {
    Notice notice;
    std::shared_ptr<const FileDescriptor> file;
  };
  explicit Channel(FileDescriptor socket) : socket_(std::move(socket)) {}
  bool try_send(const Notice& notice, const FileDescriptor* file);

  FileDescriptor socket_;
  std::vector<Pending> pending_;
  bool closed_ = false;
};

}  // namespace stretto::transport::shm
