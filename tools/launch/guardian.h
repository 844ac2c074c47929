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

// A small process between the launcher and the ranks. It starts the ranks, hence is their parent,
// and the parent of all that they start and leave behind, daemons included (a subreaper). It tells
// the launcher how ranks end. When the launcher ends, in good order or killed without warning at
// any moment, it kills all these processes and ends itself: nothing is left behind. If somebody
// kills it instead, the system kills the ranks.
class Guardian {
 public:
  // Must be called before the process has a second thread. `options` as they are now; `status_fd`
  // is inherited by the ranks under its number.
  static Result<Guardian> start(const LaunchOptions& options, int status_fd);
  Guardian(Guardian&&) = default;
  Guardian& operator=(Guardian&&) = delete;
  ~Guardian() { (void)end().ok(); }

  // Lets it start the ranks. It tells of each of them, in order, that it has started, or of the
  // first that it could not start; then of ranks that have ended. They stay zombies until restart()
  // or end(), so that their process groups can be signalled without any risk that a number means
  // something else meanwhile.
  // `rendezvous` and `master`: see RankSettings.
  Status start_ranks(const std::string& rendezvous, const std::string& master) const;
  // Lets it start a rank again that has ended, once it has killed and reaped what is left of its
  // process group, whose number may mean something else from this call on. It tells of that as of a
  // start. One after the other: the next one once this has been told. That the guardian has ended
  // is what next() says.
  void restart(int local_rank, int number) const;
  // Readable when there is an event.
  int fd() const { return socket_.get(); }
  // Nothing if there is none now. Fails if the guardian has ended.
  Result<std::optional<RankEvent>> next() const;
  // Lets it end the ranks without this process, and end() do nothing.
  void give_up() { socket_.reset(); }
  // Returns when nothing of the ranks is left. Fails if that takes longer than kKillTime.
  Status end();

 private:
  Guardian(pid_t pid, FileDescriptor socket) : pid_(pid), socket_(std::move(socket)) {}

  pid_t pid_;
  FileDescriptor socket_;
};

}  // namespace stretto::launch
