// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"
#include "tools/launch/host.h"
#include "tools/launch/options.h"

namespace stretto::launch {

// A small process between the launcher and the ranks. It starts the ranks, so it is their parent,
// and as a subreaper also that of all processes that they leave behind, daemons included. It tells
// the launcher how ranks end. When the launcher ends, in good order or killed at any moment, the
// guardian kills all these processes and ends itself, so that nothing is left behind. If somebody
// kills the guardian, the system kills the ranks.
class Guardian {
 public:
  // Call it before the process has a second thread. The guardian works with a copy of `options`.
  // The ranks inherit `status_fd`, under the same number.
  static Result<Guardian> start(const LaunchOptions& options, int status_fd);
  Guardian(Guardian&&) = default;
  Guardian& operator=(Guardian&&) = delete;
  ~Guardian() { (void)end().ok(); }

  // Tells the guardian to start the ranks. next() then returns an event for each rank that has
  // started, in order, or for the first that could not be started; later for ranks that have ended.
  // Ended ranks stay zombies until restart() or end(), so that their process groups can be
  // signalled safely: no other process gets the number. `rendezvous` and `master`: see
  // RankSettings.
  Status start_ranks(const std::string& rendezvous, const std::string& master) const;
  // Tells the guardian to start an ended rank again, after it has killed and reaped what is left of
  // the rank's process group; from this call on, the group's number may belong to another process.
  // next() returns an event as for a first start. Wait for it before the next restart(). If the
  // guardian has ended, next() fails.
  void restart(int local_rank, int number) const;
  // A descriptor that is readable when there is an event.
  int fd() const { return socket_.get(); }
  // Returns the next event; empty if there is none now. Never blocks. Fails if the guardian has
  // ended.
  Result<std::optional<RankEvent>> next() const;
  // Makes the guardian end the ranks by itself; end() then does not wait for it.
  void give_up() { socket_.reset(); }
  // Ends the ranks. Blocks until nothing of them is left; fails if this takes longer than
  // kKillTime.
  Status end();

 private:
  Guardian(pid_t pid, FileDescriptor socket) : pid_(pid), socket_(std::move(socket)) {}

  pid_t pid_;
  FileDescriptor socket_;
};

}  // namespace stretto::launch
