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
#include "stretto/job/status_slot.h"

namespace stretto::job {

// A whiteboard between a launcher and the ranks of its host: memory without a name (memfd). It has
// 256 bytes for each rank of the host, where the rank notes what it is doing, and 256 for each rank
// of the job, where the launcher tells how the rank has ended. The notes outlive the ranks. So the
// launcher can say what a killed rank was doing, and the other ranks learn what has killed it,
// which the end of a connection does not tell.

// A rank's side.
class StatusBoard {
 public:
  // A board without memory, as there is without a launcher: write() does nothing.
  StatusBoard() = default;
  // Maps the memory STRETTO_STATUS_FD and takes its slot STRETTO_LOCAL_RANK; `stretto run` sets
  // both. Without them, or if the file descriptor is not such memory, returns a board without
  // memory. `rank`, `size`: those in the job that was joined. `launcher_ranks`: the launcher's
  // number of each of the job's ranks, -1 if it has not started that rank. Empty: the launcher's
  // numbers are the job's if STRETTO_RANK and STRETTO_SIZE are `rank` and `size`; else no obituary
  // will be found.
  static StatusBoard open(const Environment& environment, int rank, int size,
                          std::span<const int> launcher_ranks = {});

  bool connected() const { return mapping_ != nullptr; }
  // Replaces the note; text beyond kStatusTextBytes is cut off. Never blocks and makes no system
  // call but the clock's. Any thread; the text is dropped if another thread writes at that time.
  void write(std::string_view text);
  // How the process of a rank of the job has ended, as the launcher tells it. Empty: not told yet.
  // Nothing: no launcher will tell. Never blocks. Any thread. The memory may have any content,
  // since other ranks can write to it, too.
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
  // Makes the memory for the local ranks 0 to `local_ranks` - 1 of a job of `ranks` ranks. If the
  // system refuses it, logs a warning: this is a board without memory then, with which a job can
  // run.
  LauncherBoard(int local_ranks, int ranks);

  // Children must inherit this descriptor and find its number in STRETTO_STATUS_FD. It is closed on
  // exec unless the child clears that flag.
  int fd() const { return fd_.get(); }
  // The last note, if there is one. If its rank was killed while it wrote, or takes longer than
  // kWritingTime to write, this is a mix of two notes. Waits no longer than that. The memory may
  // have any content: the ranks are not trusted with it.
  std::optional<StatusNote> read(int local_rank) const;
  // Removes the note of a rank whose place another process takes, which has written nothing yet.
  void clear(int local_rank) const;

  // Lets the ranks know that they will be told how `rank` ends.
  void promise_obituary(int rank) const { write_obituary(rank, {}); }
  // Tells how `rank` has ended; text beyond kStatusTextBytes is cut off.
  void write_obituary(int rank, std::string_view how) const;

 private:
  FileDescriptor fd_;
  std::shared_ptr<void> mapping_;
  int local_ranks_ = 0;
  int ranks_ = 0;
};

}  // namespace stretto::job
