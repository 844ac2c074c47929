// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <string_view>

#include "stretto/base/cores.h"
#include "stretto/base/status.h"

namespace stretto::bootstrap {

// What a rank tells the others about itself through the store, before they are connected.
struct RankCard {
  // Boot ID and network namespace. Ranks with equal values can probably share memory; whether the
  // connection and the mapping work decides.
  std::string machine;
  std::string network;
  // PID namespace: only among ranks of the same one does `pid` identify a process.
  std::string pid_namespace;
  std::string node;  // Host name, for error messages.
  int pid = 0;
  ProcessorSet processors;  // On which the rank may run.
  std::string links = {};   // The names of its link providers: "shm tcp".
  int streams = 1;          // Wanted connections to each rank of another host.
  // This rank's and the store's end of the route to the store; empty if the store has no address.
  std::string address = {};
  std::string store = {};
};

// The card of this process, without links.
RankCard local_card();

// One line per field. parse_card() accepts exactly what print() makes, within limits, as any
// process that can write to the store may have written the text.
std::string print(const RankCard& card);
Result<RankCard> parse_card(std::string_view text);

}  // namespace stretto::bootstrap
