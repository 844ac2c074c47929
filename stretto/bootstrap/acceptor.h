// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <set>

#include "stretto/base/mutex.h"
#include "stretto/base/thread.h"
#include "stretto/base/wait_limit.h"
#include "stretto/bootstrap/connection_source.h"

namespace stretto::bootstrap {

// Accepts connections of other ranks while a job is joined, on one thread for all of them: this
// rank may be waiting for something else meanwhile, and a client that says nothing, or anything,
// holds up nobody. The thread ends when all ranks it expects have come. Closes with its object what
// has not been taken.
class Acceptor {
 public:
  // `expected`: the ranks that may connect, each once.
  static Result<std::unique_ptr<Acceptor>> start(std::unique_ptr<ConnectionSource> source,
                                                 std::set<int> expected);

  // The connection of a rank, once it is there. Fails as failure() does.
  Result<FileDescriptor> take(int rank, const WaitLimit& limit);
  // Why nobody can connect any more: no other connection will come from the source, or this process
  // has lacked the descriptors for it for longer than transport::kShortageTime. Any thread.
  Status failure() const;

 private:
  explicit Acceptor(std::set<int> expected) : expected_(std::move(expected)) {}
  void run(int stop);
  // Returns whether a rank is still to come.
  bool admit(ProvenConnection proven);

  std::unique_ptr<ConnectionSource> source_;
  std::set<int> expected_;
  mutable Mutex mutex_;
  std::condition_variable changed_;
  std::map<int, FileDescriptor> connected_ STRETTO_GUARDED_BY(mutex_);
  std::set<int> seen_ STRETTO_GUARDED_BY(mutex_);
  Status failure_ STRETTO_GUARDED_BY(mutex_);
  StoppableThread thread_;
};

}  // namespace stretto::bootstrap
