// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "stretto/base/clock.h"
#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"
#include "stretto/job/status_board.h"

namespace stretto::launch {

// What becomes of a rank.
struct RankEvent {
  enum class Kind : std::int32_t { started, not_started, exited, killed, lost };

  Kind kind = Kind::started;
  int local_rank = 0;
  pid_t pid = -1;
  // not_started: the errno of the attempt to execute the program, 0 if it did not come to that;
  // exited: the exit code; killed: the signal.
  int number = 0;
  // not_started, or exited where that was a restart: why; lost: what has become of its host.
  std::string text = {};
  // started, from the guardian: the reading ends of pipes.
  FileDescriptor output = {};
  FileDescriptor errors = {};
  // When that happened, as its host has noticed it.
  TimePoint at = Clock::now();
  // exited, killed: what it last said it was doing.
  std::optional<job::StatusNote> note = std::nullopt;
  // exited, killed, lost: what the ranks that are left are told about it.
  std::string obituary = {};
};

// The ranks of one host, as the launcher of a job sees them.
class Host {
 public:
  virtual ~Host() = default;

  virtual Status start() = 0;
  // Readable when there may be events; negative when there will be none.
  virtual int fd() const = 0;
  // Nothing if there is none now: of each rank that it has started, or why it could not; later, how
  // it has ended. Fails if nobody looks after the ranks any more.
  virtual Result<std::optional<RankEvent>> next() = 0;
  // Starts a rank again that has ended, once nothing of its process group is left; next() tells how
  // that has gone. `number`: which restart of the job this is, from 1.
  virtual void restart(int local_rank, int number) = 0;
  // To every rank, and to what it has started, even if the rank itself has ended.
  virtual void send(int signal) = 0;
  // To the ranks of this host: how a rank of another one has ended; empty: another process is about
  // to take its place.
  virtual void tell_obituary(int rank, const std::string& how) = 0;
  // What is left does not end on SIGKILL: end() is not to wait for it.
  virtual void give_up() = 0;
  // Whether ends of ranks may be behind output that nobody reads.
  virtual bool waits_for_reader() const { return false; }
  // Before end(), so that several hosts end at the same time.
  virtual void tell_to_end() {}
  // Returns when nothing of the ranks is left. Fails if something does not end on SIGKILL.
  virtual Status end() = 0;
};

}  // namespace stretto::launch
