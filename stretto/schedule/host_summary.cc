// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <utility>

#include "stretto/schedule/chunk_owners.h"
#include "stretto/schedule/estimate.h"
#include "stretto/schedule/host_layout.h"

namespace stretto::schedule {
namespace {

// Counts the messages, level by level.
class PairCounter {
 public:
  PairCounter(std::span<const std::int32_t> hosts, int host_count)
      : hosts_(hosts),
        hosts_of_level_(static_cast<std::size_t>(host_count)),
        chains_(hosts.size()),
        longer_chains_(hosts.size()) {}

  void add(int from, int to) {
    wait_for(from, to);
    if (host_of(from) == host_of(to)) {
      pairs_.inside = true;
      return;
    }
    ++pairs_.between;
    pairs_.leaving = std::max(
        {pairs_.leaving, ++hosts_of_level_[host_of(from)].out, ++hosts_of_level_[host_of(to)].in});
  }
  // Adds a message that only counts for the chains of messages.
  void wait_for(int from, int to) {
    const int hop = host_of(from) == host_of(to) ? 0 : 1;
    int& chain = longer_chains_[static_cast<std::size_t>(to)];
    chain = std::max(chain, chains_[static_cast<std::size_t>(from)] + hop);
    longest_ = std::max(longest_, chain);
  }
  // Ends the level.
  HostSummary::Pairs finish() {
    pairs_.lengthens = longest_ > longest_before_;
    longest_before_ = longest_;
    chains_ = longer_chains_;
    std::ranges::fill(hosts_of_level_, Ports{});
    return std::exchange(pairs_, {});
  }

 private:
  struct Ports {
    int out = 0;
    int in = 0;
  };
  std::size_t host_of(int rank) const {
    return static_cast<std::size_t>(hosts_[static_cast<std::size_t>(rank)]);
  }

  std::span<const std::int32_t> hosts_;
  std::vector<Ports> hosts_of_level_;
  std::vector<int> chains_;  // Per rank, messages between hosts on the longest chain to it.
  std::vector<int> longer_chains_;
  int longest_ = 0;
  int longest_before_ = 0;
  HostSummary::Pairs pairs_;
};

// The rank from which `rank` receives at the node of the canonical tree whose two sides span 2 *
// distance ranks. Where the right side is smaller, its ranks serve several left ranks. Returns
// `rank` itself if there is no such rank.
int partner_of(int rank, int distance, int rank_count) {
  const int partner = rank ^ distance;
  if (partner < rank_count) return partner;
  const int begin = rank & ~(2 * distance - 1);
  const int middle = begin + distance;
  return middle < rank_count ? middle + (rank - begin) % (rank_count - middle) : rank;
}

}  // namespace

HostSummary::HostSummary(int rank_count, std::span<const std::int32_t> hosts)
    : rank_count_(rank_count), has_hosts_(!hosts.empty()), ranks_of_first_host_(rank_count) {
  find_kinds(hosts);
  PairCounter exchanges(hosts, host_count_);
  PairCounter edges(hosts, host_count_);
  PairCounter shifts(hosts, host_count_);
  for (int distance = 1; distance < rank_count; distance *= 2) {
    for (int rank = 0; rank < rank_count && has_hosts_; ++rank) {
      const int partner = partner_of(rank, distance, rank_count);
      const bool is_regular = partner == (rank ^ distance);
      is_regular ? exchanges.add(partner, rank) : exchanges.wait_for(partner, rank);
      if (rank % (2 * distance) == 0 && is_regular) edges.add(partner, rank);
      shifts.add(rank, (rank + distance) % rank_count);
    }
    exchanges_.push_back(exchanges.finish());
    edges_.push_back(edges.finish());
    shifts_.push_back(shifts.finish());
  }
}

HostSummary::Pairs HostSummary::ring() const {
  if (!has_hosts_ || host_count_ == 1) return {.inside = has_hosts_, .lengthens = true};
  return {
      .leaving = 1, .between = host_count_, .inside = rank_count_ > host_count_, .lengthens = true};
}

void HostSummary::find_kinds(std::span<const std::int32_t> hosts) {
  const HostLayout layout({.rank_count = rank_count_, .hosts = hosts});
  host_count_ = layout.host_count();
  std::vector<Kind> all(static_cast<std::size_t>(host_count_));
  for (int host = 0; host < host_count_; ++host) {
    all[static_cast<std::size_t>(host)].ranks = static_cast<int>(layout.members(host).size());
  }
  ranks_of_first_host_ = all.front().ranks;
  const auto subtrees = subtrees_by_host(layout);
  for (std::size_t host = 0; host < all.size(); ++host) {
    for (const Subtree& subtree : subtrees[host]) {
      ++(subtree.single() ? all[host].single_subtrees : all[host].joint_subtrees);
    }
  }
  for (const int host : owner_hosts(subtrees, chunk_count_for(rank_count_, host_count_))) {
    ++all[static_cast<std::size_t>(host)].owned_chunks;
  }
  for (const Kind& host : all) {
    const auto same = std::ranges::find_if(kinds_, [&](const Kind& kind) {
      return kind.ranks == host.ranks && kind.single_subtrees == host.single_subtrees &&
             kind.joint_subtrees == host.joint_subtrees && kind.owned_chunks == host.owned_chunks;
    });
    Kind& kind = same == kinds_.end() ? kinds_.emplace_back(host) : *same;
    ++kind.hosts;
  }
}

}  // namespace stretto::schedule
