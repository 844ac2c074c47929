// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"
#include "stretto/group/live_state.h"
#include "stretto/job/status_slot.h"

namespace stretto::job {

// The rank that a page belongs to.
struct LiveRank {
  std::string job;  // The same for all ranks of a job, different for other jobs; without spaces.
  int rank = 0;
  int size = 0;
};

// A page of memory on which a rank writes what it does. It is a file without a name (memfd) that
// the process keeps open, so that the user's other processes find it in /proc and map it (`stretto
// top`). No launcher is needed, and nothing is left behind. One thread writes at a time.
class LivePage {
 public:
  // Fails with system if the system has no such files, or no file descriptor is left.
  static Result<LivePage> create(LiveRank who);
  void write(const group::LiveState& state);

 private:
  LiveRank who_;
  FileDescriptor fd_;
  std::shared_ptr<void> mapping_;
};

// The content of a page.
struct LiveNote {
  LiveRank who;
  // decode_live_note() gives it as the process itself knows it, which in a container is another
  // number than here; find_live_notes() gives the number here.
  int pid = 0;
  TimePoint written;
  group::LiveState state;
};

// The text that the process `pid` writes on its page, and its inverse; nothing for any other text.
std::string encode(const LiveRank& who, int pid, const group::LiveState& state);
std::optional<LiveNote> decode_live_note(const StatusNote& note);

// The notes of all living ranks on this host whose processes this one may look into: those of the
// same user, and all for root with CAP_SYS_PTRACE. Ordered by job and rank. Pages that cannot be
// read are left out.
std::vector<LiveNote> find_live_notes();

}  // namespace stretto::job
