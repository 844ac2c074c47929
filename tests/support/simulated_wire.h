// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <chrono>
#include <list>
#include <optional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "stretto/base/random.h"
#include "stretto/base/view.h"
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

}  // namespace stretto::transport::sim
