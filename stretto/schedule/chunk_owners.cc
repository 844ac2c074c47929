// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/chunk_owners.h"

#include <algorithm>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "stretto/schedule/canonical_tree.h"

namespace stretto::schedule {
namespace {

// Hosts of one kind send equally many values for a chunk that another host owns, and own equally
// many chunks. So equally many values have passed their ports.
struct Kind {
  std::int64_t values = 0;
  std::int64_t owned = 0;

  friend auto operator<=>(const Kind&, const Kind&) = default;
};

// The load of the port of a host of this kind, in values of one chunk, after one more chunk: if the
// host owns that chunk, and if another host does.
struct Loads {
  std::int64_t if_owner = 0;
  std::int64_t if_not = 0;

  Loads(const Kind& kind, std::int64_t chunks, std::int64_t hosts, std::int64_t all_values) {
    const std::int64_t others = chunks - kind.owned;
    const std::int64_t out = kind.owned * (hosts - 1) + others * kind.values;
    const std::int64_t in = kind.owned * (all_values - kind.values) + others;
    if_owner = std::max(out + hosts - 1, in + all_values - kind.values);
    if_not = std::max(out + kind.values, in + 1);
  }
};

// The host with the lowest number comes first.
using Hosts = std::priority_queue<int, std::vector<int>, std::greater<>>;
using HostsByKind = std::map<Kind, Hosts>;

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

// Takes the host out whose choice as the owner gives the most loaded port the least load. Of
// several such hosts, it takes the one that owns the fewest chunks.
std::pair<Kind, int> take_owner(HostsByKind& kinds, std::int64_t chunks, std::int64_t hosts,
                                std::int64_t all_values) {
  // The largest and the second largest load if no host owned the chunk.
  std::int64_t most = 0;
  std::int64_t second = 0;
  for (const auto& [kind, members] : kinds) {
    const std::int64_t load = Loads(kind, chunks, hosts, all_values).if_not;
    second = std::max(second, members.size() > 1 ? load : std::min(most, load));
    most = std::max(most, load);
  }
  const auto judge = [&](const HostsByKind::value_type& item) {
    const Loads loads(item.first, chunks, hosts, all_values);
    const std::int64_t others = loads.if_not == most ? second : most;
    return std::tuple(std::max(others, loads.if_owner), item.first.owned, item.second.top());
  };
  const auto best = std::ranges::min_element(kinds, {}, judge);
  const std::pair<Kind, int> taken(best->first, best->second.top());
  best->second.pop();
  if (best->second.empty()) kinds.erase(best);
  return taken;
}

}  // namespace

std::vector<std::vector<Subtree>> subtrees_by_host(const HostLayout& layout) {
  std::vector<std::vector<Subtree>> found(static_cast<std::size_t>(layout.host_count()));
  find_subtrees(layout, 0, layout.rank_count(), found);
  return found;
}

std::vector<int> owner_hosts(const std::vector<std::vector<Subtree>>& subtrees, int chunk_count) {
  const auto hosts = static_cast<int>(subtrees.size());
  HostsByKind kinds;
  std::int64_t all_values = 0;
  for (int host = 0; host < hosts; ++host) {
    const std::int64_t values = std::ssize(subtrees[static_cast<std::size_t>(host)]);
    all_values += values;
    kinds[{.values = values}].push(host);
  }
  const bool is_even = kinds.size() == 1;
  std::vector<int> owners;
  for (int c = 0; c < chunk_count; ++c) {
    if (is_even) {
      owners.push_back(c % hosts);
      continue;
    }
    auto [kind, owner] = take_owner(kinds, c, hosts, all_values);
    owners.push_back(owner);
    ++kind.owned;
    kinds[kind].push(owner);
  }
  return owners;
}

}  // namespace stretto::schedule
