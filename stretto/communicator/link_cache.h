// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "stretto/communicator/communicator.h"
#include "stretto/group/link_model.h"

namespace stretto::communicator {

// A measured link, or the mapped memory of a host, as it is remembered and told to other ranks.
struct CachedLink {
  schedule::LinkCost cost = {};
  group::MemoryModel memory = {};
  bool is_confirmed = false;     // Of mapped memory: the measurement before was like it.
  std::int64_t age_seconds = 0;  // At least 1 in what load_link() returns.
};

// "measured 3 min ago"; for an age of 0 seconds "measured just now".
std::string describe_age(std::int64_t age_seconds);

// A file per link in a folder, named by a hash of what the link is; a text that people can read
// and delete.
std::string link_cache_path(const std::string& folder, std::string_view link);
// Nothing if there is none, or it is older than a week, or not what save_link() writes: the file
// may come from anyone who can write to the folder.
std::optional<CachedLink> load_link(const std::string& path);
// Replaces the file as a whole. A cache that cannot be written is no failure.
void save_link(const std::string& path, std::string_view link, const CachedLink& measured);

// All ranks take what `root` says of a link. Collective; blocks. Throws what a broadcast throws,
// and on all ranks ProtocolError, "rank 3 tells `what` that cannot be", where load_link() would
// take it from no file.
void share_link(Communicator& world, Rank root, std::string_view what, CachedLink& link);

}  // namespace stretto::communicator
