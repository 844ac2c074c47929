// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stretto/schedule/algorithms.h"
#include "stretto/schedule/cost.h"

namespace stretto::schedule {

// What decides the cost of an algorithm in a layout of hosts, computed once for a group. Building
// it takes O(ranks (log ranks + kinds of hosts)) time; it keeps O(log ranks + kinds of hosts).
// Immutable.
class HostSummary {
 public:
  // Hosts that have as many ranks, and as many subtrees of the canonical tree, and own as many
  // chunks, are of one kind. That of the first host comes first.
  struct Kind {
    int ranks = 0;
    int single_subtrees = 0;  // Of one rank, whose input travels as it is.
    int joint_subtrees = 0;   // Of several, whose partial value travels.
    int owned_chunks = 0;     // Of chunk_count_for() ones, as owner_hosts() says.
    int hosts = 0;            // Of this kind.
  };
  // Ranks that exchange messages over a given distance, which doubles from level to level.
  struct Pairs {
    int leaving = 0;      // Messages that leave, or enter, the host with most of them.
    int between = 0;      // Messages between hosts in all.
    bool inside = false;  // Whether some stay on their host.
    // Whether the longest chain of messages between hosts, each of which waits for the one before,
    // is longer with this level than without.
    bool lengthens = false;
  };

  // `hosts`: as in Shape. Empty: every rank has a link of its own to every other.
  HostSummary(int rank_count, std::span<const std::int32_t> hosts);

  int rank_count() const { return rank_count_; }
  int host_count() const { return host_count_; }
  bool has_hosts() const { return has_hosts_; }
  int ranks_of_first_host() const { return ranks_of_first_host_; }
  std::span<const Kind> kinds() const { return kinds_; }

  // The pairs whose numbers differ in bit `level`.
  Pairs exchanges(int level) const { return exchanges_[static_cast<std::size_t>(level)]; }
  // Those among them that lead the two sides of a node of the canonical tree.
  Pairs edges(int level) const { return edges_[static_cast<std::size_t>(level)]; }
  // Each rank and the one that is 2^level further round the ring of ranks 0 to n-1.
  Pairs shifts(int level) const { return shifts_[static_cast<std::size_t>(level)]; }
  // Each rank and the next one of a ring that enters and leaves each host once.
  Pairs ring() const;

 private:
  void find_kinds(std::span<const std::int32_t> hosts);

  int rank_count_;
  int host_count_ = 1;
  bool has_hosts_;
  int ranks_of_first_host_;
  std::vector<Kind> kinds_;
  std::vector<Pairs> exchanges_;
  std::vector<Pairs> edges_;
  std::vector<Pairs> shifts_;
};

// In closed form, in O(log ranks + kinds of hosts), what cost() predicts by playing every rank's
// steps: seconds until the last rank has ended, with root 0 (the query's hosts are not looked at).
// Phases that cost() lets overlap follow each other here, so the sum may be larger; a test compares
// what is chosen by the two. The halves of a two-level all_reduce load the ports of uneven hosts
// unevenly, one way first and then the other, and overlap where there are several segments.
//
// Of several segments an algorithm takes no less than a rank needs for the messages of all; and,
// where the query says how many may be under way at a time, no less than each of those lanes needs
// for its segments, one after the other.
//
// Whatever may be chosen has a closed form, and so has the ring. Of the others is_estimated() is
// false, and estimate() must not be called.
inline bool is_estimated(const Algorithm& algorithm) { return algorithm.closed_form != nullptr; }
double estimate(const Algorithm& algorithm, const HostSummary& hosts, const CostQuery& query);

// How many chunks the longest buffer of a rank has, with which cost() plays the same algorithm: in
// O(kinds of hosts) time.
int chunk_count(const Algorithm& algorithm, const HostSummary& hosts);

// Of an algorithm on the mapped memory of hosts (Access::both), in O(kinds of hosts) time: how
// many slots a rank shares at most, or more where that depends on the root.
int shared_slots(const Algorithm& algorithm, const HostSummary& hosts);

}  // namespace stretto::schedule
