// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "stretto/base/mutex.h"
#include "stretto/base/thread.h"
#include "stretto/base/wait_limit.h"
#include "stretto/bootstrap/authenticating_listener.h"
#include "stretto/bootstrap/link_provider.h"

namespace stretto::bootstrap {

// A message between a rank and the listener of its host, over a Unix socket between processes of
// one user (or of root).
struct HostFrame {
  // With a connection: the rank at its other end. -1: there is no connection, and the text is a
  // bind address or, in the answer, an address.
  std::int32_t rank = -1;
  std::string text;
  FileDescriptor connection = {};
};

// Listens for all ranks of a host while a job is joined, so that a host needs only one port. One of
// these ranks runs it. Each connection proves the job key here, as it would at the rank that it is
// to reach, and is then handed to that rank. It has a thread of its own; a silent or slow peer
// holds up no other. The destructor closes everything, including connections that were not handed
// over yet.
class HostListener {
 public:
  struct Options {
    std::set<std::int32_t> ranks;  // The ranks for which it listens.
    JobKey key;
    Purpose purpose = Purpose::mesh_tcp;  // The purpose of the connections that it hands over.
    Identity self;
    // Opens a socket at a bind address that a rank has named. Called on the listener's thread.
    std::function<Result<LinkProvider::Listener>(const std::string& bind_address)> listen;
  };
  static Result<std::unique_ptr<HostListener>> start(Options options);

  // The name of the Unix socket, for register_at_host().
  const std::string& name() const { return name_; }
  // Why no rank can connect any more, because descriptors are lacking; else ok. Any thread.
  Status failure() const;

 private:
  struct Port {
    std::string address;
    std::unique_ptr<AuthenticatingListener> connections;
  };
  struct Member {
    FileDescriptor socket;
    std::deque<HostFrame> output = {};
  };

  explicit HostListener(Options options) : options_(std::move(options)) {}
  void run(int stop);
  Duration time_until_due() const;
  Status shortage() const;
  void take_ranks();
  bool serve(Member& member);
  std::string address_at(const std::string& bind_address);
  void hand_over(ProvenConnection connection);
  static bool flush(Member& member);

  Options options_;
  std::string name_;
  std::unique_ptr<AuthenticatingListener> registrations_;
  std::map<std::string, Port> ports_;  // By bind address.
  std::map<std::int32_t, Member> members_;
  mutable Mutex mutex_;
  Status failure_ STRETTO_GUARDED_BY(mutex_);
  StoppableThread thread_;
};

// The source of the connections handed to a rank, and the address at which other ranks reach it.
struct Reception {
  std::unique_ptr<ConnectionSource> connections;
  std::string address;
};

// Asks the listener of this host, which has the name `name`, to listen at `bind_address` for this
// rank, until `connections` is destroyed or this rank registers again. Blocks until the address is
// known. Fails if the listener cannot be reached, belongs to another user, or cannot listen at
// `bind_address`.
Result<Reception> register_at_host(const std::string& name, const std::string& bind_address,
                                   const JobKey& key, const Identity& self, const WaitLimit& limit);

}  // namespace stretto::bootstrap
