// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "stretto/base/clock.h"
#include "stretto/base/environment.h"
#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"

namespace stretto::job {

// A whiteboard between a launcher and the ranks of its host: memory without a name (memfd) with 256
// bytes for each rank, in which a rank notes what it is doing. The note outlives the rank, so that
// the launcher can say what a rank that was killed had been doing.

inline constexpr std::size_t kStatusTextBytes = 240;

// A rank's side.
class StatusBoard {
 public:
  // A board on which nothing is written, as without a launcher.
  StatusBoard() = default;
  // The slot STRETTO_LOCAL_RANK of the memory STRETTO_STATUS_FD, both set by `stretto run`. Without
  // them, or if that file descriptor is none of ours, a board on which nothing is written.
  static StatusBoard open(const Environment& environment);

  bool connected() const { return mapping_ != nullptr; }
  // Replaces the note; what is beyond kStatusTextBytes is cut off. Never blocks and makes no system
  // call but the clock's. One thread at a time.
  void write(std::string_view text);

 private:
  std::shared_ptr<void> mapping_;
  std::size_t slot_ = 0;
};

struct StatusNote {
  std::string text;
  TimePoint written;
};

// More than a rank needs to write a note, though others have its processor meanwhile.
inline constexpr Duration kWritingTime = std::chrono::milliseconds(100);

// The launcher's side.
class StatusBoardReader {
 public:
  // Makes the memory, for local ranks 0 to `slots` - 1. A system without unnamed files in memory
  // gets a board without slots, and a warning: a job can run without.
  static Result<StatusBoardReader> create(std::size_t slots);

  // What children must inherit and find in STRETTO_STATUS_FD. Closed on exec unless the child
  // clears that flag.
  int fd() const { return fd_.get(); }
  // The last note, if there is one; from a rank that was killed while it wrote, or has not gone on
  // with it for kWritingTime, a mix of two. Waits no longer than that.
  // Survives any content of the memory: the ranks are not trusted with it.
  std::optional<StatusNote> read(std::size_t slot) const;

 private:
  FileDescriptor fd_;
  std::shared_ptr<void> mapping_;
  std::size_t slots_ = 0;
};

}  // namespace stretto::job
