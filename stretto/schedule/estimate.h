// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stretto/schedule/algorithms.h"
#include "stretto/schedule/cost.h"

namespace stretto::schedule {

// The properties of a layout of hosts that decide the cost of an algorithm, computed once per
// group. The constructor takes O(ranks (log ranks + kinds of hosts)) time; the object has O(log
// ranks + kinds of hosts) size. Immutable.
class HostSummary {
 public:
  // Hosts are of one kind if they have equal numbers of ranks, of subtrees of the canonical tree
  // and of owned chunks. The kind of the first host comes first.
  struct Kind {
    int ranks = 0;
    int single_subtrees = 0;  // Subtrees of one rank, whose input is sent as it is.
    int joint_subtrees = 0;   // Subtrees of several ranks, whose partial is sent.
    int owned_chunks = 0;     // Of the chunk_count_for() chunks, as owner_hosts() says.
    int hosts = 0;            // Of this kind.
  };
  // The pairs of ranks that exchange messages on one level. The distance of a pair doubles from
  // level to level.
  struct Pairs {
    int leaving = 0;      // Messages out of, or into, the host with most of them.
    int between = 0;      // All messages between hosts.
    bool inside = false;  // Whether some messages stay inside a host.
    // Whether this level makes the longest chain of messages between hosts longer. In a chain each
    // message waits for the one before.
    bool lengthens = false;
  };

  // `hosts` is as in Shape. Empty: every rank has a separate link to every other rank.
  HostSummary(int rank_count, std::span<const std::int32_t> hosts);

  int rank_count() const { return rank_count_; }
  int host_count() const { return host_count_; }
  bool has_hosts() const { return has_hosts_; }
  int ranks_of_first_host() const { return ranks_of_first_host_; }
  std::span<const Kind> kinds() const { return kinds_; }

  // The pairs of ranks whose numbers differ only in bit `level`.
  Pairs exchanges(int level) const { return exchanges_[static_cast<std::size_t>(level)]; }
  // The pairs of exchanges(level) that are the first ranks of the two sides of a node of the
  // canonical tree.
  Pairs edges(int level) const { return edges_[static_cast<std::size_t>(level)]; }
  // Each rank with the rank 2^level places after it in the ring of ranks 0 to n-1.
  Pairs shifts(int level) const { return shifts_[static_cast<std::size_t>(level)]; }
  // Each rank with its successor in a ring that enters and leaves each host once.
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

// Predicts in closed form what cost() predicts by simulation: the seconds until the last rank has
// ended, with root 0. Takes O(log ranks + kinds of hosts) time. `hosts` gives the layout;
// `query.hosts` is ignored. Phases that overlap in cost() follow one another here, so the result
// may be larger; a test compares the algorithms that the two functions choose. Only the overlap of
// the two halves of a two-level all_reduce is taken into account, if there are several segments: on
// uneven hosts one half loads the ports more in one direction, and the other half in the other.
//
// With several segments the result has two lower bounds: the time that a rank needs for the
// messages of all segments and, if the query limits the segments under way, the time that each lane
// needs for its segments one after the other.
//
// Every algorithm has a closed form, unless it runs on mapped memory alone. For those
// is_estimated() is false, and estimate() must not be called.
inline bool is_estimated(const Algorithm& algorithm) { return algorithm.closed_form != nullptr; }
double estimate(const Algorithm& algorithm, const HostSummary& hosts, const CostQuery& query);

// The number of chunks of the longest buffer of a rank, as cost() counts them for the same
// algorithm. Takes O(kinds of hosts) time.
int chunk_count(const Algorithm& algorithm, const HostSummary& hosts);

// For an algorithm with Access::both: the number of raw slots that a rank shares, at most. The
// result may be too large where the number depends on the root. Takes O(kinds of hosts) time.
int shared_slots(const Algorithm& algorithm, const HostSummary& hosts);

}  // namespace stretto::schedule
