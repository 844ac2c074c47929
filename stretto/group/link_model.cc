// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/link_model.h"

#include <map>

namespace stretto::group {

HostList hosts_of(const HostList& all, std::span<const Rank> members) {
  HostList hosts;
  if (all.empty()) return hosts;
  std::map<std::int32_t, std::int32_t> numbers;
  for (const Rank member : members) {
    const std::int32_t host = all[member];
    const auto next = static_cast<std::int32_t>(numbers.size());
    hosts.push_back(numbers.emplace(host, next).first->second);
  }
  return hosts;
}

}  // namespace stretto::group
