// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/chunk_owners.h"

#include <algorithm>
#include <tuple>

#include "stretto/schedule/canonical_tree.h"

namespace stretto::schedule {
namespace {

// What passes the port of a host, in values of one chunk.
struct Port {
  int values = 0;  // That it sends for a chunk which another host owns.
  int out = 0;
  int in = 0;
  int owned = 0;

  int load_if_owner(int hosts, int all_values) const {
    return std::max(out + hosts - 1, in + all_values - values);
  }
  int load_if_not() const { return std::max(out + values, in + 1); }
};

void find_subtrees(const HostLayout& layout, int begin, int end,
                   std::vector<std::vector<Subtree>>& found) {
  if (layout.together(begin, end)) {
    found[static_cast<std::size_t>(layout.host_of(begin))].push_back({begin, end});
    return;
  }
  const Split split = split_of(begin, end);
  find_subtrees(layout, split.begin, split.middle, found);
  find_subtrees(layout, split.middle, split.end, found);
}

// The host that leaves the most loaded port with the least; of several, who owns least.
std::size_t next_owner(const std::vector<Port>& ports, int all_values) {
  const auto hosts = static_cast<int>(ports.size());
  // The largest load of those that do not own the chunk, and the largest but one.
  int most = 0;
  int second = 0;
  for (const Port& port : ports) {
    second = std::max(second, std::min(most, port.load_if_not()));
    most = std::max(most, port.load_if_not());
  }
  const auto judge = [&](const Port& port) {
    const int others = port.load_if_not() == most ? second : most;
    return std::tuple(std::max(others, port.load_if_owner(hosts, all_values)), port.owned);
  };
  return static_cast<std::size_t>(std::ranges::min_element(ports, {}, judge) - ports.begin());
}

}  // namespace

std::vector<std::vector<Subtree>> subtrees_by_host(const HostLayout& layout, int rank_count) {
  std::vector<std::vector<Subtree>> found(static_cast<std::size_t>(layout.host_count()));
  find_subtrees(layout, 0, rank_count, found);
  return found;
}

std::vector<int> owner_hosts(const std::vector<std::vector<Subtree>>& subtrees, int chunk_count) {
  std::vector<Port> ports(subtrees.size());
  int all_values = 0;
  bool is_even = true;
  for (std::size_t host = 0; host < ports.size(); ++host) {
    ports[host].values = static_cast<int>(subtrees[host].size());
    all_values += ports[host].values;
    is_even = is_even && ports[host].values == ports[0].values;
  }
  std::vector<int> owners;
  const auto hosts = static_cast<int>(ports.size());
  for (int c = 0; c < chunk_count; ++c) {
    if (is_even) {
      owners.push_back(c % hosts);
      continue;
    }
    const std::size_t owner = next_owner(ports, all_values);
    owners.push_back(static_cast<int>(owner));
    for (std::size_t host = 0; host < ports.size(); ++host) {
      Port& port = ports[host];
      port.out += host == owner ? hosts - 1 : port.values;
      port.in += host == owner ? all_values - port.values : 1;
    }
    ++ports[owner].owned;
  }
  return owners;
}

}  // namespace stretto::schedule
