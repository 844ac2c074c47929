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

// What the ranks of a host and who listens for them tell each other, over a Unix socket between
// processes of one user (or of root).
struct HostFrame {
  // A connection's other end; -1: no connection comes along, and the text is a bind address, or the
  // answer, an address.
  std::int32_t rank = -1;
  std::string text;
  FileDescriptor connection = {};
};

// One rank of a host listens for all of them while a job is joined, so that a host needs one port.
// Each connection proves the job key here, as it would at the rank that it is to reach, and is then
// handed to that rank. It has a thread of its own; whoever is silent or slow holds up nobody.
// Closes everything with its object, also connections that no rank has been handed yet.
class HostListener {
 public:
  struct Options {
    std::set<std::int32_t> ranks;  // For whom it listens.
    JobKey key;
    Purpose purpose = Purpose::mesh_tcp;  // Of the connections that it hands over.
    Identity self;
    // Opens a socket at a bind address that a rank has named. Called by the thread.
    std::function<Result<LinkProvider::Listener>(const std::string& bind_address)> listen;
  };
  static Result<std::unique_ptr<HostListener>> start(Options options);

  // The name of the Unix socket, for register_at_host().
  const std::string& name() const { return name_; }
  // Why nobody can connect any more, as of Acceptor. Any thread.
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

// What a rank is handed, and the address at which the others reach it.
struct Reception {
  std::unique_ptr<ConnectionSource> connections;
  std::string address;
};

// Has this rank reached at `bind_address` by whoever listens for its host; until the connections
// are destroyed, or this rank registers again. Blocks until it knows the address. Fails if that
// process cannot be reached, belongs to another user, or cannot listen there.
Result<Reception> register_at_host(const std::string& name, const std::string& bind_address,
                                   const JobKey& key, const Identity& self, const WaitLimit& limit);

}  // namespace stretto::bootstrap
