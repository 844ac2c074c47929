// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>

#include "stretto/base/environment.h"
#include "stretto/base/status.h"
#include "stretto/communicator/communicator.h"
#include "stretto/group/link_model.h"

namespace stretto::communicator {

// Where measured links are remembered, so that only the first job on a host pays for it.
struct LinkCacheOptions {
  std::string folder = {};  // Empty: nowhere.
  bool refresh = false;     // Measure anew, whatever is remembered.
  // As of TcpLinkOptions: another one makes another link of a network.
  std::string congestion_control = {};
};
// STRETTO_LINK_CACHE=off, refresh or a folder; else a folder "stretto" in XDG_CACHE_HOME or in
// .cache of HOME; nowhere if neither is set.
LinkCacheOptions link_cache_options(const Environment& environment);

// What the links of a job cost: measured between one pair of ranks on a host and one pair on two
// hosts, where there are such, and what small messages cost where some ranks of a few hosts all
// send them; or remembered from an earlier job between the same hosts with the same kind of link;
// agreed by all ranks. What cannot be measured stays modelled. Collective on `world`, whose
// collectives must work already. Where it measures it takes some tenths of a second, and on slow
// links as long as some MiB take: seconds at 10 Mbit/s.
Result<group::LinkModel> agree_on_links(Communicator& world, const group::HostList& hosts,
                                        const LinkCacheOptions& cache);

}  // namespace stretto::communicator
