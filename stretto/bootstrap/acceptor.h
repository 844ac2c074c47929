// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "stretto/bootstrap/handshake.h"
#include "stretto/bootstrap/socket.h"

namespace stretto::bootstrap {

// Accepts connections of other ranks while a job is joined. Each handshake runs on a thread of its
// own, so that a client that says nothing, or anything, holds up nobody; it is refused with a line
// in the log and the job goes on.
class Acceptor {
 public:
  struct Options {
    FileDescriptor listener;
    JobKey key;
    Purpose purpose = Purpose::mesh_tcp;
    Identity self;
    std::set<int> expected;  // Ranks that may connect, each once.
  };
  explicit Acceptor(Options options);
  // Stops accepting; handshakes that go on are waited for, a few seconds at most.
  ~Acceptor();

  // The connection of a rank, once it is there.
  Result<FileDescriptor> take(int rank, Deadline deadline);

 private:
  void run();
  void greet(FileDescriptor connection);

  Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, FileDescriptor> connected_;
  std::set<int> seen_;
  bool stopping_ = false;
  std::vector<std::thread> greeters_;
  std::thread thread_;
};

}  // namespace stretto::bootstrap
