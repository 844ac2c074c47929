// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <array>
#include <string>

#include "stretto/base/environment.h"
#include "stretto/base/host_name.h"
#include "stretto/base/status.h"
#include "stretto/communicator/communicator.h"
#include "stretto/group/link_model.h"

namespace stretto::communicator {

// Where measurements of links are stored, so that only the first job between hosts has to measure.
struct LinkCacheOptions {
  std::string folder = {};  // Empty: they are not stored.
  bool refresh = false;     // Measure again even if there is a stored measurement.
  // As in TcpLinkOptions. Links with different congestion control are measured separately.
  std::string congestion_control = {};
  std::string host = host_name();  // Links of other hosts are measured separately, too.
};
// The name of a rank's host, as it tells it to the others: at most 64 bytes, and then zeros.
using ToldHost = std::array<char, 65>;
// STRETTO_LINK_CACHE is "off" (not stored), "refresh" or a folder. If it is "refresh" or not set,
// the folder is "stretto" in XDG_CACHE_HOME, else in .cache of HOME; not stored if neither is set.
LinkCacheOptions link_cache_options(const Environment& environment);

// The costs of a job's links, the same on all ranks. Measures one pair of ranks on a host and one
// pair on two hosts, if there are such pairs, and small messages while some ranks of a few hosts
// all send. Uses a stored measurement of an earlier job between the same hosts with the same kind
// of link instead, if there is one. Costs that cannot be measured keep the defaults of LinkModel.
// Collective on `world`, whose collectives must work already. Blocks: a measurement takes some
// tenths of a second, and on slow links as long as some MiB take, which is seconds at 10 Mbit/s.
Result<group::LinkModel> agree_on_links(Communicator& world, const group::HostList& hosts,
                                        const LinkCacheOptions& cache);

}  // namespace stretto::communicator
