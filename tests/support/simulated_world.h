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

// Virtual time since the beginning of a simulation.
using Time = std::chrono::nanoseconds;

// The clock of a simulated world, the times at which something arrives at a rank, and the ranks
// that something has happened to. It exists because few of thousands of ranks have anything to do
// at a time. Not thread safe.
class Agenda {
 public:
  explicit Agenda(int ranks) : is_awake_(static_cast<std::size_t>(ranks)) {}

  Time now() const { return now_; }
  void pass(Time time);
  // Moves the clock to the next arrival anywhere. Returns whether there is one.
  bool skip();

  // Notes that something arrives at `rank` at time `arrival`.
  void add(Time arrival, int rank) { arrivals_.emplace(arrival, rank); }
  // Notes that something has happened to `rank`.
  void wake(int rank);
  // The ranks that something has happened to since the last call, each once.
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
// drawn from a seed. Like a socket, a wire takes and gives any number of bytes per call. But if
// there is room or data, the number is not 0, so that "nothing moves" means that nothing can. Not
// thread safe.
class Wire {
 public:
  struct Options {
    std::uint64_t seed = 0;
    std::size_t room_bytes = 64 * 1024;      // Limit on bytes written and not yet read.
    std::size_t step_bytes_max = 64 * 1024;  // Limit on bytes per write or read.
    Time delay_max = std::chrono::microseconds(50);
  };
  struct Ends {
    int writer = 0;
    int reader = 1;
  };
  // What happens to the next frame to which it can happen.
  enum class Fault {
    none,
    loss,  // A message disappears, or the clear frame for one. (An announcement may be needless.)
    flip,  // A bit of a message's payload changes.
  };

  // `agenda` belongs to the world and must outlive the wire.
  Wire(Agenda* agenda, const Ends& ends, const Options& options);

  // Returns how many bytes it has taken; 0 if there is no room.
  std::size_t write(std::span<const ConstByteSpan> pieces);
  // Returns how many bytes it has given; 0 if none have arrived.
  std::size_t read(ByteSpan into);
  // Whether bytes or the end have arrived.
  bool readable() const { return has_arrived() || ended(); }
  // Whether all bytes that will ever arrive have been read.
  bool ended() const;

  // Ends the wire, because the writer is gone. If `lossy`, the bytes under way are lost from a
  // random one on.
  void end(bool lossy);
  // Notes that the reader is gone: nothing written from now on matters.
  void close_reader();
  bool reader_gone() const { return reader_gone_; }

  void arm(Fault fault) { armed_ = fault; }
  // Whether the fault that was armed last has happened.
  bool struck() const { return armed_ == Fault::none; }

  // The number of frames of all kinds written so far.
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
  std::list<Packet> packets_;   // Most wires have none, and then no memory for any.
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
  std::optional<std::uint64_t> flip_at_;  // payload_left_bytes_ at the byte to flip.
};

struct WorldOptions {
  int ranks = 1;
  std::uint64_t seed = 0;
};

// The clock, the wires and the faults of a simulated world. Not thread safe: all ranks of a world
// belong to one thread, which lets them make progress in any order, or to threads of which only one
// runs at a time.
class Network {
 public:
  explicit Network(const WorldOptions& options);

  int size() const { return ranks_; }
  Time now() const { return agenda_.now(); }
  void pass(Time time) { agenda_.pass(time); }
  // Moves the clock to the next arrival anywhere. Returns whether there is one: if not, and no rank
  // can move, nothing will ever happen again.
  bool skip() { return agenda_.skip(); }
  // The ranks that may have something new to do since the last call.
  std::vector<int> take_awake() { return agenda_.take_awake(); }

  // Ends the connections of `rank`, as if its process had been killed: bytes under way are lost
  // from a random one on. The rank itself sees all others end.
  void kill(Rank rank);
  // Ends the link between two ranks in the same way.
  void cut(Rank a, Rank b);
  // Whether the fault that the wire was armed with has happened.
  bool struck(Rank from, Rank to) { return wire(from, to).struck(); }

  // `function` is called at the end of each progress() of an endpoint, on its thread: here the
  // threads of blocking ranks take turns. Waiting ranks then look again at once and need not sleep.
  using AfterProgress = std::function<void(Rank rank, bool moved)>;
  void set_after_progress(AfterProgress function) { after_progress_ = std::move(function); }
  bool after_progress(Rank rank, bool moved) {
    if (after_progress_) after_progress_(rank, moved);
    return moved || after_progress_ != nullptr;
  }

  // The number of frames that all ranks have written so far.
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

// Makes ranks on a network with random delays, partial reads and writes, and bounded buffers. The
// seed decides all of it, so the same calls in the same order see the same world. Drive the
// endpoints by progress(): they have no descriptors, so nobody wakes a sleeping one. There is no
// shared memory.
Result<World> make_world(const WorldOptions& options);

}  // namespace stretto::transport::sim
