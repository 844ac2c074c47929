// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/epoll.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"
#include "stretto/bootstrap/connection_source.h"
#include "stretto/bootstrap/handshake_machine.h"

namespace stretto::bootstrap {

// A listening socket that hands out only connections that have proven the job key. It has no
// thread: its owner's poll loop calls serve(). It holds a limited number of connections of
// strangers, each for a short time: when there are too many, it closes the oldest that has not
// shown the key. It refuses connections of other users' processes to a Unix socket before it reads
// a byte. Not thread safe.
class AuthenticatingListener final : public ConnectionSource {
 public:
  struct Options {
    FileDescriptor listener;
    JobKey key;
    Purpose purpose = Purpose::mesh_tcp;
    Identity self;
    // Other ranks for which it listens: a proven peer says which rank it is to reach.
    std::set<std::int32_t> others = {};
    // A connection that has not proven the key within this time is closed.
    Duration handshake_timeout = std::chrono::seconds(10);
    // How many unproven connections it holds; at most a quarter of the process's limit of
    // descriptors counts. The default allows for all ranks of a large job at once. A rank whose
    // connection is closed connects again, which takes longer.
    std::size_t max_unproven = 4096;
  };
  // A peer that introduced itself as a stretto peer and was refused for what it said.
  struct Refusal {
    FileDescriptor fd;
    std::string name;
    Identity claimed;
    bool holds_key = false;
    Status why;
  };
  struct Accepted {
    std::vector<ProvenConnection> proven;
    std::vector<Refusal> refused;
  };

  static Result<std::unique_ptr<AuthenticatingListener>> create(Options options);

  int descriptor() const override { return epoll_.get(); }
  Duration time_until_due() const override;
  // Accepts connections, and reads and answers handshakes, as far as possible now. Does not block.
  Accepted serve();
  // The same without the refused peers.
  std::vector<ProvenConnection> take() override { return serve().proven; }
  const Status& shortage() const override { return shortage_; }

 private:
  struct Handshake {
    FileDescriptor fd;
    std::string name;
    HandshakeMachine machine;
    Deadline deadline;
  };
  // Whether a handshake goes on or is over after advance().
  enum class State { pending, over };

  explicit AuthenticatingListener(Options options) : options_(std::move(options)) {}
  void accept_some(Accepted& accepted);
  bool make_room();
  void start(FileDescriptor fd, Accepted& accepted);
  State advance(Handshake& handshake, Accepted& accepted);
  void refuse(Handshake& handshake, const Status& why, Accepted& accepted);
  void log_refusal(const std::string& name, const Status& why);
  void close_late(Accepted& accepted);
  Status watch_for(int fd, std::uint32_t events, int operation = EPOLL_CTL_ADD);

  Options options_;
  FileDescriptor epoll_;
  // Oldest first.
  std::vector<Handshake> handshakes_;
  int refusals_ = 0;
  Status shortage_;
  std::optional<Deadline> listening_again_;
};

}  // namespace stretto::bootstrap
