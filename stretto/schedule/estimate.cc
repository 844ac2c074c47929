// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/estimate.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "stretto/base/check.h"
#include "stretto/schedule/algorithms/all.h"
#include "stretto/schedule/estimate_model.h"

namespace stretto::schedule {
namespace {

using Model = EstimateModel;
using Pairs = HostSummary::Pairs;

// How many ranks are on the left (right) side of a node of the canonical tree that has `ranks`
// ranks below it, at least two.
int left_of(int ranks) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks - 1)));
}
int right_of(int ranks) { return ranks - left_of(ranks); }
int level_of(int left) { return std::bit_width(static_cast<unsigned>(left)) - 1; }

// The times of one node of the canonical tree when its sides meet: until the left (right) side has
// what the other side sends, and to process it. If nothing is sent to the right side, `to_right` is
// the time that its message occupies the left side, which has other messages to receive first.
struct Exchange {
  double to_left = 0;
  double to_right = 0;
  double processing = 0;
};

// The time to climb the canonical tree. Sides of one size cost the same, so this takes O(log^2
// ranks).
template <class Meet>
double climb(int ranks, const Meet& meet) {
  if (ranks < 2) return 0;
  const int left = left_of(ranks);
  const int right = right_of(ranks);
  const double on_left = climb(left, meet);
  const double on_right = left == right ? on_left : climb(right, meet);
  const Exchange exchange = meet(left, right);
  return std::max(on_left + exchange.to_right, on_right + exchange.to_left) + exchange.processing;
}

// The time to descend the tree. The first rank of the left side sends the first rank of the right
// side the messages that `each` returns for a side of that size, and then serves its own side.
template <class Each>
double descend(const Model& m, int ranks, const Each& each) {
  if (ranks < 2) return 0;
  const int left = left_of(ranks);
  const int right = right_of(ranks);
  const Pairs pairs = m.hosts.edges(level_of(left));
  const auto [count, bytes] = each(right);
  const double there = m.exchange(count, bytes, pairs) + descend(m, right, each);
  if (left == right) return there;
  return std::max(there, count * m.port(bytes, pairs) + descend(m, left, each));
}

struct Messages {
  double count = 0;
  double bytes = 0;  // Of each.
};

// The largest number of messages between hosts on the way of a chunk that makes `rounds` rounds of
// the ring, each with all hops but one. The omitted hops follow each other. They are all inside one
// host if it has more ranks than there are omitted hops.
int ring_crossings(const Model& m, int rounds) {
  int most_ranks = 0;
  for (const HostSummary::Kind& kind : m.hosts.kinds())
    most_ranks = std::max(most_ranks, kind.ranks);
  return rounds * m.hosts.ring().between - std::max(0, rounds + 1 - most_ranks);
}

// The time of one round of chunks of `each` bytes, if each rank that receives a chunk works on it
// for `work` seconds.
double ring(const Model& m, double each, double work, int crossings) {
  if (m.n < 2) return 0;
  const Pairs pairs = m.hosts.ring();
  if (pairs.between == 0) return (m.n - 1) * (m.exchange(1, each, pairs) + work);
  // A chunk passes all hops but one, and each link passes all chunks but one.
  const double way = crossings * m.between(1, each) + (m.n - 1 - crossings) * m.inside(1, each);
  return std::max(way + (m.n - 1) * work,
                  (m.n - 2) * m.port_to_one(each, pairs) + m.between(1, each) + work);
}

// How often the ranks of a smaller right side send the same data, to several ranks on the left.
double repeated(int left, int right) { return std::ceil(1.0 * left / right); }

double binomial_up(const Model& m, double bytes) {
  return climb(m.n, [&](int left, int right) {
    const double sent = bytes * m.scale_of(right);
    const Pairs pairs = m.hosts.edges(level_of(left));
    return Exchange{.to_left = m.exchange(1, sent, pairs),
                    .to_right = m.port(sent, pairs),
                    .processing = m.process(sent + bytes * m.scale_of(left))};
  });
}
double binomial_down(const Model& m, double bytes) {
  return descend(m, m.n, [=](int) { return Messages{1, bytes}; });
}

// The subtrees of a node: the first one and up to three more, with the pairs that their first ranks
// form with the first rank of the first subtree.
struct Children {
  std::array<int, 4> ranks = {};
  std::array<Pairs, 4> pairs = {};
  int count = 1;

  Children(const HostSummary& hosts, int node_ranks) {
    const int left = left_of(node_ranks);
    const int right = right_of(node_ranks);
    const Pairs across = hosts.edges(level_of(left));
    ranks[0] = left;
    if (left > 1) {
      ranks[0] = left / 2;
      add(left / 2, hosts.edges(level_of(left / 2)));
    }
    if (right > 1) {
      add(left_of(right), across);
      add(right_of(right), across);
    } else {
      add(right, across);
    }
  }
  void add(int subtree_ranks, Pairs to_first) {
    ranks[static_cast<std::size_t>(count)] = subtree_ranks;
    pairs[static_cast<std::size_t>(count++)] = to_first;
  }
};

double knomial_reduce_of(const Model& m, int ranks) {
  if (ranks < 2) return 0;
  const Children children(m.hosts, ranks);
  double below = 0;
  double ports = 0;
  double touched = m.bytes * m.scale_of(children.ranks[0]);
  double latest = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(children.count); ++i) {
    const bool is_new = i == 0 || children.ranks[i] != children.ranks[i - 1];
    if (is_new) below = std::max(below, knomial_reduce_of(m, children.ranks[i]));
    if (i == 0) continue;
    const double sent = m.bytes * m.scale_of(children.ranks[i]);
    latest = std::max(latest, ports + m.exchange(1, sent, children.pairs[i]));
    ports += m.port(sent, children.pairs[i]);
    touched += sent;
  }
  return below + latest + m.process(touched);
}

double knomial_broadcast_of(const Model& m, int ranks) {
  if (ranks < 2) return 0;
  const Children children(m.hosts, ranks);
  double ports = 0;
  double latest = 0;
  const double own = knomial_broadcast_of(m, children.ranks[0]);
  double below = own;
  for (std::size_t i = 1; i < static_cast<std::size_t>(children.count); ++i) {
    if (children.ranks[i] != children.ranks[i - 1]) {
      below = knomial_broadcast_of(m, children.ranks[i]);
    }
    latest = std::max(latest, ports + m.exchange(1, m.bytes, children.pairs[i]) + below);
    ports += m.port(m.bytes, children.pairs[i]);
  }
  return std::max(latest, ports + own);
}

// The time of one direction of recursive halving of a buffer of `chunks` chunks. Where the right
// side is smaller, its owners send the left owners all their chunks; otherwise each side keeps
// half.
double halving(const Model& m, int chunks, bool up) {
  const double each = m.bytes / chunks;
  return climb(m.n, [&](int left, int right) {
    const double owners = std::bit_floor(static_cast<unsigned>(right));
    const bool even = left == right;
    const double sent = std::ceil(even ? 0.5 * chunks / left : chunks / owners);
    const double kept = even ? sent : std::ceil(1.0 * chunks / left);
    const Pairs pairs = m.hosts.exchanges(level_of(left));
    const double moved = m.exchange(sent, up ? each * m.scale_of(right) : each, pairs);
    if (!up) return Exchange{moved, moved};
    return Exchange{moved, even ? moved : 0,
                    m.process(kept * each * (m.scale_of(left) + m.scale_of(right)))};
  });
}

// The same query with links and processors on which bytes take no time.
CostQuery without_bytes(const CostQuery& query) {
  CostQuery result = query;
  for (LinkCost* cost : {&result.link, &result.local_link}) {
    cost->seconds_per_byte = cost->burst_seconds_per_byte = cost->reduce_seconds_per_byte = 0;
  }
  return result;
}

// How long the wire would need for the bytes that pass at once: those that the token bucket holds
// at first, and those it regains while each message but the last is under way. `at_once`: the time
// of the operation if no byte waited for the wire. `ways`: its time if bytes took no time at all.
double saved_seconds(const LinkCost& link, double at_once, double ways) {
  const double burst = link.burst_bytes * link.seconds_per_byte;
  const double one_way = link.latency_seconds + 2 * link.message_seconds;
  if (one_way <= 0 || ways <= one_way) return burst;
  return burst + std::min(at_once - one_way, burst * (ways / one_way - 1));
}

// Whether data flow only to the root or only away from it. Then a rank that forwards data waits for
// no answer.
bool goes_one_way(const Algorithm& algorithm, const HostSummary& hosts) {
  const Collective collective = algorithm.collective;
  if (collective == Collective::gather || collective == Collective::scatter) return true;
  if (!has_root(collective) || algorithm.name == "direct") return false;
  const bool on_two_levels = algorithm.name.starts_with("two_level");
  return !on_two_levels || (collective == Collective::broadcast && hosts.host_count() <= 2);
}

// How long a rank is busy with the messages of one segment. A closed form counts each message at
// its sender. It counts the receiver's time only for messages that wait for each other, once per
// latency of a link.
double busy_with_messages(const Algorithm& algorithm, const HostSummary& hosts,
                          const CostQuery& query) {
  CostQuery messages = without_bytes(query);
  for (LinkCost* cost : {&messages.link, &messages.local_link}) {
    cost->latency_seconds = cost->further_message_seconds = cost->sync_seconds = 0;
  }
  CostQuery received = messages;
  for (LinkCost* cost : {&received.link, &received.local_link}) {
    cost->latency_seconds = std::exchange(cost->message_seconds, 0);
  }
  return algorithm.closed_form(Model(hosts, messages)) -
         algorithm.closed_form(Model(hosts, received));
}

// A schedule runs once for each segment. A lane takes its next segment when it has ended the one
// before. Where ranks exchange data, this includes the wait for the messages of the other ranks.
double in_segments(const Algorithm& algorithm, const HostSummary& hosts, const CostQuery& query) {
  const Model all(hosts, query);
  const double seconds = algorithm.closed_form(all);
  const int chunks = chunk_count(algorithm, hosts);
  const double segments = chunks == 0 ? 1 : all.segments(all.bytes / chunks);
  if (segments <= 1) return seconds;
  // In a collective with a root, some of the messages that wait for each other are those of other
  // ranks.
  const double share = has_root(algorithm.collective) ? 0.5 : 1;
  const double least =
      std::max(seconds, share * segments * busy_with_messages(algorithm, hosts, query));
  const auto lanes = static_cast<double>(query.lanes);
  if (lanes == 0 || segments <= lanes || goes_one_way(algorithm, hosts)) return least;
  CostQuery one = query;
  one.bytes = query.segment_bytes * static_cast<std::size_t>(chunks);
  return std::max(least, segments / lanes * algorithm.closed_form(Model(hosts, one)));
}

}  // namespace

namespace time_of {

double direct_all_gather(const Model& m) { return m.all_to_all(m.bytes / m.n, m.n); }
double direct_reduce_scatter(const Model& m) { return direct_all_gather(m) + m.process(m.bytes); }
double direct_all_reduce(const Model& m) { return direct_reduce_scatter(m) + direct_all_gather(m); }
double direct_gather(const Model& m) { return m.fan(m.bytes / m.n); }
double direct_scatter(const Model& m) { return m.fan(m.bytes / m.n); }
double direct_barrier(const Model& m) { return 2 * m.fan(0); }
double direct_reduce(const Model& m) { return direct_reduce_scatter(m) + direct_gather(m); }
double direct_broadcast(const Model& m) {
  if (m.n < 2) return m.process(m.bytes);
  const double each = m.bytes / (m.n - 1);
  return m.fan(each) + m.all_to_all(each, m.n - 1);
}

double ring_all_gather(const Model& m) { return ring(m, m.bytes / m.n, 0, ring_crossings(m, 1)); }
double ring_reduce_scatter(const Model& m) {
  if (m.n < 2) return 0;
  // Only the first of all hops carries no partial value.
  const double scale = (1 + (m.n - 2) * m.scale) / (m.n - 1);
  const double chunk = m.bytes / m.n;
  return ring(m, scale * chunk, m.process((scale + 1) * chunk), ring_crossings(m, 1));
}
double ring_all_reduce(const Model& m) {
  const int crossings = ring_crossings(m, 2) - ring_crossings(m, 1);
  return ring_reduce_scatter(m) + ring(m, m.bytes / m.n, 0, crossings);
}

double recursive_doubling_all_reduce(const Model& m) {
  return climb(m.n, [&](int left, int right) {
    const double each = m.bytes * m.scale_of(left);
    const Pairs pairs = m.hosts.exchanges(level_of(left));
    return Exchange{m.exchange(repeated(left, right), m.bytes * m.scale_of(right), pairs),
                    m.exchange(1, each, pairs), m.process(each + m.bytes * m.scale_of(right))};
  });
}
double recursive_doubling_all_gather(const Model& m) {
  return climb(m.n, [&](int left, int right) {
    const Pairs pairs = m.hosts.exchanges(level_of(left));
    return Exchange{m.exchange(repeated(left, right) * right, m.bytes / m.n, pairs),
                    m.exchange(left, m.bytes / m.n, pairs)};
  });
}
double recursive_doubling_barrier(const Model& m) {
  double seconds = 0;
  for (int level = 0; (1 << level) < m.n; ++level) {
    seconds += m.exchange(1, 0, m.hosts.shifts(level));
  }
  return seconds;
}

double binomial_tree_reduce(const Model& m) { return binomial_up(m, m.bytes); }
double binomial_tree_broadcast(const Model& m) { return binomial_down(m, m.bytes); }
double binomial_tree_all_reduce(const Model& m) {
  return binomial_tree_reduce(m) + binomial_tree_broadcast(m);
}
double binomial_tree_barrier(const Model& m) { return binomial_up(m, 0) + binomial_down(m, 0); }
double binomial_tree_gather(const Model& m) {
  return climb(m.n, [&](int left, int right) {
    const Pairs pairs = m.hosts.edges(level_of(left));
    return Exchange{.to_left = m.exchange(right, m.bytes / m.n, pairs),
                    .to_right = right * m.port(m.bytes / m.n, pairs)};
  });
}
double binomial_tree_scatter(const Model& m) {
  return descend(m, m.n, [&](int right) { return Messages{1.0 * right, m.bytes / m.n}; });
}

double knomial_reduce(const Model& m) { return knomial_reduce_of(m, m.n); }
double knomial_broadcast(const Model& m) { return knomial_broadcast_of(m, m.n); }

// Each tree carries half of the buffer; a rank forwards what it receives to two others.
double double_binary_tree_broadcast(const Model& m) {
  if (m.n < 2) return 0;
  const int depth = std::bit_width(static_cast<unsigned>(m.n - 1));
  const double half = m.bytes / 2;
  const Pairs pairs = m.hosts.shifts(0);
  return depth * (m.port(half, pairs) + m.exchange(1, half, pairs));
}

double bruck_all_to_all(const Model& m) {
  double seconds = 0;
  for (int level = 0; (1 << level) < m.n; ++level) {
    const int hop = 1 << level;
    const int moved = m.n / (2 * hop) * hop + std::max(0, m.n % (2 * hop) - hop);
    seconds += m.exchange(moved, m.bytes / m.n, m.hosts.shifts(level));
  }
  return seconds;
}
double pairwise_all_to_all(const Model& m) { return direct_all_gather(m); }

double recursive_halving_reduce_scatter(const Model& m) { return halving(m, m.n, true); }
double recursive_halving_all_reduce(const Model& m) {
  const int chunks = static_cast<int>(std::bit_floor(static_cast<unsigned>(m.n)));
  return halving(m, chunks, true) + halving(m, chunks, false);
}

}  // namespace time_of

int chunk_count(const Algorithm& algorithm, const HostSummary& hosts) {
  const int n = hosts.rank_count();
  if (algorithm.collective == Collective::all_to_all) return n;
  if (const auto required = required_chunks(algorithm.collective, n)) return *required;
  if (const auto two_level = two_level_chunk_count(algorithm, hosts)) return *two_level;
  if (algorithm.name == "ring") return n;
  if (algorithm.name == "direct") {
    return algorithm.collective == Collective::broadcast ? std::max(1, n - 1) : n;
  }
  if (algorithm.name == "recursive_halving") {
    return static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
  }
  return algorithm.name == "double_binary_tree" ? 2 : 1;
}

double estimate(const Algorithm& algorithm, const HostSummary& hosts, const CostQuery& query) {
  STRETTO_CHECK(is_estimated(algorithm), "{} by {} has no closed form", name(algorithm.collective),
                algorithm.name);
  const double seconds = in_segments(algorithm, hosts, query);
  const LinkCost& link = query.link;
  if (link.burst_bytes == 0) return seconds;
  // The token bucket has filled while messages and their processing took time.
  CostQuery free = query;
  free.link.seconds_per_byte = link.burst_seconds_per_byte;
  // While a port waits, the token bucket fills for its next bytes, as if all phases overlapped.
  CostQuery wire = without_bytes(query);
  wire.segment_bytes = 1;
  wire.lanes = 0;
  for (LinkCost* cost : {&wire.local_link, &wire.link}) {
    cost->latency_seconds = cost->message_seconds = cost->further_message_seconds = 0;
    cost->sync_seconds = cost->burst_bytes = 0;
  }
  wire.link.seconds_per_byte = link.seconds_per_byte;
  const double on_wire = in_segments(algorithm, hosts, wire);
  const double at_once = in_segments(algorithm, hosts, free);
  const double saved =
      saved_seconds(link, at_once, in_segments(algorithm, hosts, without_bytes(free)));
  const double queued = std::max(0.0, on_wire - saved);
  // With several segments, one is processed while another one waits for the wire.
  const double each = static_cast<double>(query.bytes) / hosts.rank_count();
  const double segments =
      query.segment_bytes == 0 ? 1 : std::max(1.0, each / static_cast<double>(query.segment_bytes));
  const double slower = std::max(at_once, queued);
  const double overlapped = slower + (at_once + queued - slower) / segments;
  return std::min(seconds, std::max(on_wire, overlapped));
}

}  // namespace stretto::schedule
