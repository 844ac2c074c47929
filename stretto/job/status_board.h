// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/environment.h"
#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"
#include "stretto/job/status_slot.h"

namespace stretto::job {

// A whiteboard between a launcher and the ranks of its host: memory without a name (memfd) with 256
// bytes for each rank of the host, in which it notes what it is doing, and for each rank of the
// job, in which the launcher tells how it has ended. The notes outlive the ranks, so that the
// launcher can say what a rank that was killed had been doing; and the others find out what has
// killed it, which a connection that ends does not tell.

// A rank's side.
class StatusBoard {
 public:
  // A board on which nothing is written, as without a launcher.
  StatusBoard() = default;
  // The slot STRETTO_LOCAL_RANK of the memory STRETTO_STATUS_FD, both set by `stretto run`. Without
  // them, or if that file descriptor is none of ours, a board on which nothing is written.
  // `rank`, `size`: of the job that has been joined. `launcher_ranks`: what the launcher calls each
  // of its ranks, -1 where it does not know it. Empty: the same as the job, if it calls this one so
  // and has started as many; else it knows none, and nobody tells how they have ended.
  static StatusBoard open(const Environment& environment, int rank, int size,
                          std::span<const int> launcher_ranks = {});

  bool connected() const { return mapping_ != nullptr; }
  // Replaces the note; what is beyond kStatusTextBytes is cut off. Never blocks and makes no system
  // call but the clock's. Any thread; what comes while another one writes is left out.
  void write(std::string_view text);
  // How the process of a rank of the job has ended, as the launcher tells it; empty: not told yet.
  // Nothing if no launcher will tell. Never blocks. Any thread. Survives any content of the memory:
  // other ranks can write to it, too.
  std::optional<std::string> find_obituary(int rank) const;

 private:
  std::shared_ptr<void> mapping_;
  std::size_t slot_ = 0;
  std::size_t slots_ = 0;
  std::vector<int> launcher_ranks_;  // By rank of the job.
};

// The launcher's side. Used by one thread.
class LauncherBoard {
 public:
  // Makes the memory, for the local ranks 0 to `local_ranks` - 1 of a job of `ranks`. A system
  // without unnamed files in memory gets a board on which nothing stands, and a warning: a job can
  // run without.
  static Result<LauncherBoard> create(int local_ranks, int ranks);

  // What children must inherit and find in STRETTO_STATUS_FD. Closed on exec unless the child
  // clears that flag.
  int fd() const { return fd_.get(); }
  // The last note, if there is one; from a rank that was killed while it wrote, or has not gone on
  // with it for kWritingTime, a mix of two. Waits no longer than that.
  // Survives any content of the memory: the ranks are not trusted with it.
  std::optional<StatusNote> read(int local_rank) const;
  // Removes it: another process takes the place of the rank that wrote it, and has written nothing.
  void clear(int local_rank) const;

  // Lets the ranks know that they will be told how this rank of the job ends.
  void promise_obituary(int rank) const { write_obituary(rank, {}); }
  // Tells how it has ended; what is beyond kStatusTextBytes is cut off.
  void write_obituary(int rank, std::string_view how) const;

 private:
  FileDescriptor fd_;
  std::shared_ptr<void> mapping_;
  int local_ranks_ = 0;
  int ranks_ = 0;
};

}  // namespace stretto::job
