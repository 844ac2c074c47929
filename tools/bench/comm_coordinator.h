// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stretto/stretto.h"
#include "tools/bench/measure.h"

namespace stretto::bench {

// Ranks that do not all share memory meet by the library itself.
class CommCoordinator final : public Coordinator {
 public:
  explicit CommCoordinator(Communicator& comm) : comm_(comm) {}

  int rank() const override { return comm_.rank().value(); }
  int size() const override { return comm_.size(); }
  void barrier() override { comm_.barrier().wait(); }
  double agree(double value) override;
  void maxima(std::vector<double>& values) override;
  double flag_latency_ns() override { return 0; }

 private:
  Communicator& comm_;
};

// How many ranks, with this one, give the same name for their host; collective.
int count_ranks_of(Communicator& comm, const std::string& host);

// The ranks of `comm` by a board if they share a host, else by `comm` itself; collective. The board
// has no name, so nothing is left of it however the ranks end.
class RankCoordinator {
 public:
  RankCoordinator(Communicator& comm, int cores);
  Coordinator& operator*() const { return *coordinator_; }
  bool one_host() const { return board_ != nullptr; }
  int ranks_of_host() const { return ranks_of_host_; }
  // So that no other rank waits for this one, which has failed.
  void abandon();

 private:
  const int ranks_of_host_;
  std::unique_ptr<Board> board_;
  std::unique_ptr<Coordinator> coordinator_;
};

}  // namespace stretto::bench
