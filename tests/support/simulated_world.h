// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "stretto/base/rank_vector.h"
#include "stretto/transport/endpoint.h"
#include "tests/support/simulated_wire.h"

namespace stretto::transport::sim {

struct WorldOptions {
  int ranks = 1;
  std::uint64_t seed = 0;
};

// The clock and the wires of a simulated world, and what goes wrong in it. Not thread safe: all
// ranks of a world belong to one thread, which lets them make progress in any order it likes, or to
// threads of which one at a time moves.
class Network {
 public:
  explicit Network(const WorldOptions& options);

  int size() const { return ranks_; }
  Time now() const { return agenda_.now(); }
  void pass(Time time) { agenda_.pass(time); }
  // Moves the clock to the next arrival anywhere. Returns whether there is one: if not, and no rank
  // can move, nothing will ever happen again.
  bool skip() { return agenda_.skip(); }
  // The ranks that may have got something to do since the last call.
  std::vector<int> take_awake() { return agenda_.take_awake(); }

  // Ends the rank for the others, as if its process had been killed: what it had under way is lost
  // from a random byte on. It sees all others end.
  void kill(Rank rank);
  // Ends the link between two ranks, in the same way.
  void cut(Rank a, Rank b);
  // Whether what the wire was armed with has happened.
  bool struck(Rank from, Rank to) { return wire(from, to).struck(); }

  // Called at the end of each progress() of an endpoint, on its thread: there the threads of ranks
  // that block take turns. Whoever waits looks again at once then, and need not sleep.
  using AfterProgress = std::function<void(Rank rank, bool moved)>;
  void set_after_progress(AfterProgress function) { after_progress_ = std::move(function); }
  bool after_progress(Rank rank, bool moved) {
    if (after_progress_) after_progress_(rank, moved);
    return moved || after_progress_ != nullptr;
  }

  // Frames that all ranks have written so far.
  std::uint64_t frames() const;

  Wire& wire(Rank from, Rank to) {
    return *wires_[static_cast<std::size_t>(from.value() * ranks_ + to.value())];
  }

 private:
  int ranks_;
  Agenda agenda_;
  std::vector<std::unique_ptr<Wire>> wires_;
  AfterProgress after_progress_;
};

struct World {
  std::shared_ptr<Network> network;
  RankVector<std::unique_ptr<Endpoint>> endpoints = {};  // Keep the network alive.
};

// Ranks on a network with random delays, partial reads and writes and bounded buffers; all of it
// decided by the seed, so the same calls in the same order see the same world. Endpoints are meant
// to be driven by progress(): they have no descriptors, so nobody wakes a sleeper. Without shared
// memory.
Result<World> make_world(const WorldOptions& options);

}  // namespace stretto::transport::sim
