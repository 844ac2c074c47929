// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"
#include "stretto/base/wait_limit.h"

namespace stretto::transport::shm {

// What ranks of a host say to each other over their Unix socket: 16 bytes, sometimes with a
// descriptor.
struct Notice {
  enum class Kind : std::uint32_t {
    doorbell = 1,  // Wake up.
    region = 2,    // Here is region `region`: `bytes` bytes behind the descriptor.
    release = 3,   // Region `region` is gone.
    proof = 4,     // At address `bytes` of my process lies the number `region`.
    taken = 5,     // The file of your region `region` is here.
    again = 6,     // It was lost on its way: send it again.
  };
  Kind kind = Kind::doorbell;
  std::uint32_t region = 0;
  std::uint64_t bytes = 0;
};
static_assert(sizeof(Notice) == 16, "travels as it lies in memory");

// The Unix socket between two ranks of a host. The kernel closes it when a process ends, however it
// ends, so its end is the end of the peer. Not thread safe.
//
// A message whose descriptor finds no place in the receiving process arrives without it. So a file
// is kept open here until the peer has said that it is there; a peer that has lost one asks again
// as soon as it has room for a descriptor.
class Channel {
 public:
  struct Received {
    Notice notice;
    FileDescriptor descriptor;
  };

  // Makes the socket non-blocking.
  static Result<std::shared_ptr<Channel>> create(FileDescriptor socket);

  // Ends the stream, also if a child that has been forked has a copy of the socket.
  ~Channel();

  // Sends now, or keeps the notice until flush() if the socket is full.
  void send(const Notice& notice, std::shared_ptr<const FileDescriptor> file = nullptr);
  // Sends what is left to send, and asks again for what has been lost. To be called now and then.
  void flush();
  // Lets go of the file of a region, and takes back its notice if that has not been sent yet.
  // Returns whether the peer has never heard of the region, and so need not hear of its end.
  bool take_back(std::uint32_t region);
  // A doorbell that finds the socket full is dropped: the peer has something to read already.
  void ring();

  // The next notice, if one is here. Sets closed() at the end of the stream or at nonsense.
  std::optional<Received> receive();
  // A region of the peer whose file has been lost, and has not come again yet.
  struct Lost {
    std::uint64_t bytes = 0;
    int error_number = 0;       // Why there was no room for its descriptor.
    bool is_asked_for = false;  // And no answer has come yet.
  };
  std::optional<Lost> find_lost(std::uint32_t region) const;
  // Whether the peer has taken all files.
  bool is_settled() const { return unconfirmed_.empty(); }

  bool closed() const { return closed_; }
  // Ends the stream for both.
  void shut_down();
  int descriptor() const { return socket_.get(); }

 private:
  struct Pending {
    Notice notice;
    std::shared_ptr<const FileDescriptor> file;
    bool is_awaited = false;  // The peer has lost it, and asked for it again.
  };
  explicit Channel(FileDescriptor socket) : socket_(std::move(socket)) {}
  bool try_send(const Notice& notice, const FileDescriptor* file);
  bool drop_pending(std::uint32_t region);
  std::optional<Received> receive_next(bool& file_lost);
  bool serve(const Received& received, bool file_lost);
  void send_again(std::uint32_t region);
  void ask_again();

  FileDescriptor socket_;
  std::vector<Pending> pending_;
  std::map<std::uint32_t, Pending> unconfirmed_;  // Sent or pending, with files.
  std::map<std::uint32_t, Lost> lost_;
  TimePoint ask_at_;
  bool closed_ = false;
};

}  // namespace stretto::transport::shm
