// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "stretto/base/random.h"
#include "stretto/base/rank_vector.h"
#include "stretto/base/view.h"
#include "stretto/transport/endpoint.h"
#include "stretto/transport/frame.h"

namespace stretto::transport::sim {

// Virtual, since the beginning of a simulation.
using Time = std::chrono::nanoseconds;

// The clock of a simulated world, and what its wires bring about: when something arrives at a rank,
// and which ranks something has happened to. Of thousands of ranks few have anything to do at a
// time. Not thread safe.
class Agenda {
 public:
  explicit Agenda(int ranks) : is_awake_(static_cast<std::size_t>(ranks)) {}

  Time now() const { return now_; }
  void pass(Time time);
  // Moves the clock to the next arrival anywhere. Returns whether there is one.
  bool skip();

  // Something arrives at `rank` then.
  void add(Time arrival, int rank) { arrivals_.emplace(arrival, rank); }
  // Something has happened to `rank`.
  void wake(int rank);
  // Those to whom something has happened since the last call, each once.
  std::vector<int> take_awake();

 private:
  void deliver();

  Time now_{0};
  std::priority_queue<std::pair<Time, int>, std::vector<std::pair<Time, int>>, std::greater<>>
      arrivals_;
  std::vector<bool> is_awake_;
  std::vector<int> awake_;
};

// One direction between two simulated ranks: a stream of bytes that arrive, in order, after a delay
// drawn from a seed. Like a socket it takes and gives as much as it likes, but always something
// where there is room or data, so that "nothing moves" means that nothing can. Not thread safe.
class Wire {
 public:
  struct Options {
    std::uint64_t seed = 0;
    std::size_t room_bytes = 64 * 1024;      // Written and not yet read, at most.
    std::size_t step_bytes_max = 64 * 1024;  // Per write and read.
    Time delay_max = std::chrono::microseconds(50);
  };
  struct Ends {
    int writer = 0;
    int reader = 1;
  };
  // What happens to the next frame that can suffer it.
  enum class Fault {
    none,
    loss,  // A message disappears, or the word that it may come. (Its announcement is not always
           // needed.)
    flip,  // A bit of a message's payload changes.
  };

  // `agenda` is that of the world and outlives the wire.
  Wire(Agenda* agenda, const Ends& ends, const Options& options);

  // Returns how many bytes have been taken; 0: there is no room.
  std::size_t write(std::span<const ConstByteSpan> pieces);
  // Returns how many bytes have been given; 0: none have arrived.
  std::size_t read(ByteSpan into);
  // Whether bytes have arrived, or the end.
  bool readable() const { return has_arrived() || ended(); }
  // Whether all bytes have been read that will ever come.
  bool ended() const;

  // The writer is gone; of what is under way, the rest from a random byte on is lost if `lossy`.
  void end(bool lossy);
  // The reader is gone: nothing written from now on matters.
  void close_reader();
  bool reader_gone() const { return reader_gone_; }

  void arm(Fault fault) { armed_ = fault; }
  // Whether the fault that was armed last has happened.
  bool struck() const { return armed_ == Fault::none; }

  // Frames of all kinds that have been written so far.
  std::uint64_t frames() const { return frames_; }

 private:
  struct Packet {
    Time arrival{0};
    std::vector<std::byte> bytes;
    std::size_t read = 0;
  };

  bool has_arrived() const {
    return !packets_.empty() && packets_.front().arrival <= agenda_->now();
  }
  Time draw_arrival();
  void admit(ConstByteSpan bytes, std::vector<std::byte>& out);
  void begin_frame();

  Agenda* agenda_;
  Ends ends_;
  Options options_;
  Random random_;
  std::list<Packet> packets_;   // Most wires have none, and no memory for any then.
  std::size_t held_bytes_ = 0;  // Written and not yet read.
  Time last_arrival_{0};
  std::optional<Time> end_;
  bool reader_gone_ = false;

  // The frame that is being written, so that faults strike whole ones.
  Fault armed_ = Fault::none;
  std::uint64_t frames_ = 0;
  FrameHeader header_{};
  std::size_t header_bytes_ = 0;
  std::uint64_t payload_left_bytes_ = 0;
  bool losing_ = false;
  std::optional<std::uint64_t> flip_at_;  // As payload_left_bytes_ when it is written.
};

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
