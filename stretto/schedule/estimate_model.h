// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

#include "stretto/schedule/estimate.h"

namespace stretto::schedule {

// The terms from which the formulas of estimate() are made.
class EstimateModel {
 public:
  EstimateModel(const HostSummary& summary, const CostQuery& query)
      : hosts(summary),
        n(summary.rank_count()),
        bytes(static_cast<double>(query.bytes)),
        scale(query.partial_scale),
        segment_bytes_(static_cast<double>(query.segment_bytes)),
        link_(query.link),
        local_(query.local_link),
        further_seconds_(further(link_)) {}

  const HostSummary& hosts;
  int n;
  double bytes;  // Bytes of the whole buffer.
  double scale;  // Bytes of a partial value per byte of the dtype.

  // The number of segments of a chunk of `chunk_bytes`.
  double segments(double chunk_bytes) const {
    return segment_bytes_ == 0 ? 1 : std::max(1.0, std::ceil(chunk_bytes / segment_bytes_));
  }

  // The scale of the value of a subtree with `ranks` ranks. It is a partial value if there are
  // several.
  double scale_of(int ranks) const { return ranks > 1 ? scale : 1; }

  double process(double touched_bytes) const {
    return touched_bytes * link_.reduce_seconds_per_byte;
  }
  // The time for which `host_bytes` keep the port of a host busy.
  double wire(double host_bytes) const { return host_bytes * link_.seconds_per_byte; }
  double sync(int ranks) const {
    return ranks < 2 ? 0 : link_.sync_seconds * std::ceil(std::log2(ranks));
  }

  // Every rank sends `count` messages of `each` bytes and receives as many.
  double exchange(double count, double each, HostSummary::Pairs pairs) const {
    if (!hosts.has_hosts()) return alone(link_, count, each);
    const double local = pairs.inside || !pairs.lengthens ? inside(count, each) : 0;
    if (pairs.leaving == 0) return local;
    const double network = between(count, pairs.leaving * count * each);
    return std::max(local, pairs.lengthens ? network : network - between(1, 0));
  }
  // The same exchange inside a host, where the processors copy every byte in and out.
  double inside(double count, double each) const {
    if (count <= 0) return 0;
    return std::max(alone(local_, count, each), process(2 * count * each));
  }
  // The time for `count` messages of a rank to other hosts, if its host sends `host_bytes` in all.
  double between(double count, double host_bytes) const {
    if (count <= 0) return 0;
    const double port =
        std::max((count - 1) * further_seconds_, host_bytes * link_.seconds_per_byte);
    return 2 * link_.message_seconds + link_.latency_seconds + port;
  }
  // How long a message of `each` bytes keeps its sender from sending the next one to another rank.
  double port(double each, HostSummary::Pairs pairs) const {
    return port(each, pairs, further_seconds_);
  }
  // The same if the next message goes to the same rank, over the same socket.
  double port_to_one(double each, HostSummary::Pairs pairs) const {
    return port(each, pairs, link_.message_seconds);
  }
  // Rank 0 receives a message from every other rank, or sends one to each. The messages inside its
  // host come first.
  double fan(double each) const {
    if (!hosts.has_hosts()) return alone(link_, n - 1, each);
    const int near = hosts.ranks_of_first_host() - 1;
    const int far = n - 1 - near;
    if (far == 0) return inside(near, each);
    return in_a_row(local_, near, each) + between(far, far * each);
  }
  // Each of `ranks` ranks sends a message to every other one. The time of the messages inside hosts
  // is added to that of the messages between hosts, because the ranks of a host may share its
  // cores.
  double all_to_all(double each, int ranks) const {
    if (ranks < 2) return 0;
    if (!hosts.has_hosts()) return alone(link_, ranks - 1, each);
    double local = 0;
    double network = 0;
    for (const HostSummary::Kind& kind : hosts.kinds()) {
      const int near = std::min(kind.ranks, ranks) - 1;
      const int far = ranks - 1 - near;
      if (far == 0) {
        local = std::max(local, inside(near, each));
      } else {
        local = std::max({local, in_a_row(local_, near, each), process(2 * near * each)});
        network = std::max(network, between(far, 1.0 * kind.ranks * far * each));
      }
    }
    return local + network;
  }

 private:
  double port(double each, HostSummary::Pairs pairs, double message_seconds) const {
    if (pairs.leaving > 0) {
      return std::max(message_seconds, pairs.leaving * each * link_.seconds_per_byte);
    }
    const LinkCost& link = hosts.has_hosts() ? local_ : link_;
    return link.message_seconds + each * link.seconds_per_byte;
  }
  static double further(const LinkCost& link) {
    return std::max(link.message_seconds, link.further_message_seconds);
  }
  // How long `count` messages keep their sender busy.
  static double in_a_row(const LinkCost& link, double count, double each) {
    if (count <= 0) return 0;
    return link.message_seconds + (count - 1) * further(link) +
           count * each * link.seconds_per_byte;
  }
  static double alone(const LinkCost& link, double count, double each) {
    if (count <= 0) return 0;
    return in_a_row(link, count, each) + link.message_seconds + link.latency_seconds;
  }

  double segment_bytes_;
  LinkCost link_;
  LinkCost local_;
  double further_seconds_;
};

// The number of chunks of a two-level algorithm whose collective does not fix it. Empty for other
// algorithms.
std::optional<int> two_level_chunk_count(const Algorithm& algorithm, const HostSummary& hosts);

}  // namespace stretto::schedule
