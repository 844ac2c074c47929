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

// The measurement of a link or of a host's mapped memory, as it is stored in a file and told to
// other ranks.
struct CachedLink {
  schedule::LinkCost cost = {};
  group::MemoryModel memory = {};
  bool is_confirmed = false;     // For mapped memory: the measurement before was similar.
  std::int64_t age_seconds = 0;  // 0: just now. load_link() returns at least 1.
};
inline constexpr std::int64_t kNotMeasured = -1;  // An age: there is no measurement.

// "measured 3 min ago"; for an age of 0 seconds "measured just now".
std::string describe_age(std::int64_t age_seconds);

// The file of a link in `folder`, named by a hash of the link's description. It is a text that
// people can read and delete.
std::string link_cache_path(const std::string& folder, std::string_view link);
// Nothing if there is no file, if it is older than a week, or if it does not have the form that
// save_link() writes: any user who can write to the folder may have made it.
std::optional<CachedLink> load_link(const std::string& path);
// Replaces the file as a whole. Does nothing if the cache cannot be written.
void save_link(const std::string& path, std::string_view link, const CachedLink& measured);

// Gives all ranks the `link` of `root`, whose age may be kNotMeasured. Collective; blocks. Throws
// like a broadcast. Throws ProtocolError on all ranks, "rank 3 tells `what` that cannot be", if
// load_link() would not accept the values.
void share_link(Communicator& world, Rank root, std::string_view what, CachedLink& link);

}  // namespace stretto::communicator
