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

// Accepts connections of other ranks while a job is joined, on one thread of its own. So this rank
// can wait for something else meanwhile, and a client that is silent or sends garbage holds up no
// other. The thread ends when all expected ranks have connected. The destructor closes the
// connections that were not taken.
class Acceptor {
 public:
  // Each rank in `expected` may connect once.
  static Result<std::unique_ptr<Acceptor>> start(std::unique_ptr<ConnectionSource> source,
                                                 std::set<int> expected);

  // Blocks until `rank` has connected, and returns its connection. Fails with timeout at the limit,
  // and with failure() if that is not ok.
  Result<FileDescriptor> take(int rank, const WaitLimit& limit);
  // Why no rank can connect any more: the source has ended, or this process has lacked file
  // descriptors for longer than transport::kShortageTime. Ok while ranks can connect. Any thread.
  Status failure() const;

 private:
  explicit Acceptor(std::set<int> expected) : expected_(std::move(expected)) {}
  void run(int stop);
  // Returns whether expected ranks are still missing.
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
