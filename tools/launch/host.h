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

// Something that has happened to a rank: a start or an end.
struct RankEvent {
  enum class Kind : std::int32_t { started, not_started, exited, killed, lost };

  Kind kind = Kind::started;
  int local_rank = 0;
  pid_t pid = -1;
  // not_started: the errno of executing the program, or 0 if it failed earlier; exited: the exit
  // code; killed: the signal.
  int number = 0;
  // not_started, or exited after a failed restart: why; lost: what has happened to its host.
  std::string text = {};
  // started, from the guardian: the reading ends of the rank's output pipes.
  FileDescriptor output = {};
  FileDescriptor errors = {};
  // When the rank's host noticed it.
  TimePoint at = Clock::now();
  // exited, killed: the operation that the rank last reported.
  std::optional<job::StatusNote> note = std::nullopt;
  // exited, killed, lost: what the remaining ranks are told about it.
  std::string obituary = {};
};

// The ranks of one host, as the launcher of a job sees them.
class Host {
 public:
  virtual ~Host() = default;

  virtual Status start() = 0;
  // A descriptor that is readable when there may be events; negative when none will come.
  virtual int fd() const = 0;
  // Returns the next event; empty if there is none now. There is one for each rank that has started
  // or could not be started, and later one for its end. Fails if nobody looks after the ranks any
  // more.
  virtual Result<std::optional<RankEvent>> next() = 0;
  // Starts an ended rank again, once nothing of its process group is left; next() tells whether it
  // has started. `number`: which restart of the job this is, from 1.
  virtual void restart(int local_rank, int number) = 0;
  // Sends `signal` to every rank and the processes that it has started, even if the rank has ended.
  virtual void send(int signal) = 0;
  // Tells the ranks of this host how a rank of another host has ended. An empty `how` means that a
  // new process is about to take its place.
  virtual void tell_obituary(int rank, const std::string& how) = 0;
  // Something does not end on SIGKILL: end() shall not wait for it.
  virtual void give_up() = 0;
  // Whether news of ended ranks may be stuck behind output that nobody reads.
  virtual bool waits_for_reader() const { return false; }
  // Starts to end the ranks without waiting, so that several hosts end at the same time.
  virtual void tell_to_end() {}
  // Blocks until nothing of the ranks is left. Fails if something does not end on SIGKILL.
  virtual Status end() = 0;
};

}  // namespace stretto::launch
