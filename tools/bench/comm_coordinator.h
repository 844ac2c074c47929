// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stretto/stretto.h"
#include "tools/bench/measure.h"

namespace stretto::bench {

// Coordinates ranks that do not all share memory, by the library under test itself.
class CommCoordinator final : public Coordinator {
 public:
  explicit CommCoordinator(Communicator& comm) : comm_(comm) {}

  int size() const override { return comm_.size(); }
  void barrier() override { comm_.barrier().wait(); }
  double agree(double value) override;
  void maxima(std::vector<double>& values) override;
  double flag_latency_ns() override { return 0; }

 private:
  Communicator& comm_;
};

// Returns how many ranks, including this one, pass the same `host`; collective.
int count_ranks_of(Communicator& comm, const std::string& host);

// Coordinates the ranks of `comm` by a board if they share a host, else by `comm` itself. The
// constructor is collective. The board has no name in the file system, so that nothing of it is
// left however the ranks end.
class RankCoordinator {
 public:
  RankCoordinator(Communicator& comm, int cores);
  Coordinator& operator*() const { return *coordinator_; }
  bool one_host() const { return board_ != nullptr; }
  int ranks_of_host() const { return ranks_of_host_; }
  // Tells the other ranks not to wait for this one, which has failed.
  void abandon();

 private:
  const int ranks_of_host_;
  std::unique_ptr<Board> board_;
  std::unique_ptr<Coordinator> coordinator_;
};

}  // namespace stretto::bench
