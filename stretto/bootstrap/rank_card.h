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
  // Boot and network namespace: ranks with equal ones can share memory. A hint only; what decides
  // is whether the connection and the mapping work.
  std::string machine;
  std::string network;
  // Namespace of processes: among ranks with equal ones, a pid says which process a rank is.
  std::string pid_namespace;
  std::string node;  // Host name, for messages.
  int pid = 0;
  ProcessorSet processors;  // On which it may run.
  std::string links = {};   // The names of its link providers: "shm tcp".
  int streams = 1;          // To each rank of another host, if that one wants as many.
  // The ends of this rank's way to the store; empty if the store has no address.
  std::string address = {};
  std::string store = {};
};

// The card of this process, without links.
RankCard local_card();

// One line per field. parse() accepts exactly what print() makes, within limits; the text may come
// from anyone who can write to the store.
std::string print(const RankCard& card);
Result<RankCard> parse_card(std::string_view text);

}  // namespace stretto::bootstrap
