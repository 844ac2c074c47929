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

// Which rank a page belongs to.
struct LiveRank {
  std::string job;  // The same for all ranks of a job, and for no other job; without spaces.
  int rank = 0;
  int size = 0;
};

// A rank's page, on which it writes how it gets on: memory without a name (memfd) that its process
// keeps open, so that the user's other processes find it in /proc and map it (`stretto top`). No
// launcher is needed, and nothing is left behind. One thread writes at a time.
class LivePage {
 public:
  // Fails with system where there are no such files, or no descriptors.
  static Result<LivePage> create(LiveRank who);
  void write(const group::LiveState& state);

 private:
  LiveRank who_;
  FileDescriptor fd_;
  std::shared_ptr<void> mapping_;
};

// What was found on a page.
struct LiveNote {
  LiveRank who;
  int pid = 0;  // Read in a text: as its process knows itself, in a container another than here.
  TimePoint written;
  group::LiveState state;
};

// A page's text, as the process `pid` writes it, and back; nothing if it is no such text.
std::string encode(const LiveRank& who, int pid, const group::LiveState& state);
std::optional<LiveNote> decode_live_note(const StatusNote& note);

// The notes of all ranks on this host whose processes live and which this one may look into: those
// of the same user, and all for root with CAP_SYS_PTRACE; each with the pid by which this process
// knows it. By job and rank. What cannot be read is left out.
std::vector<LiveNote> find_live_notes();

}  // namespace stretto::job
