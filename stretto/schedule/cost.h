// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "stretto/schedule/algorithms.h"

namespace stretto::schedule {

// What a link and a rank can do, in the alpha-beta-gamma model (Thakur, Rabenseifner and Gropp,
// 2005).
struct LinkCost {
  double latency_seconds = 10e-6;       // alpha: one message of no bytes.
  double message_seconds = 1e-6;        // Of the sender's and the receiver's time, per message.
  double seconds_per_byte = 1.0 / 1e9;  // beta, each direction on its own.
  // For estimate(): of a message that a rank sends while another one of its messages is under way,
  // if that is more. Ranks that share cores, and a socket for each peer, make it dear.
  double further_message_seconds = 0;
  // For estimate(): so many bytes, saved up while nobody sends, pass at once, as they do where a
  // token bucket shapes a link.
  double burst_bytes = 0;
  // For estimate(): of those bytes. It is processors that carry them.
  double burst_seconds_per_byte = 0;
  // gamma: per byte that a reduce or copy reads, and per byte it writes to targets after the first.
  double reduce_seconds_per_byte = 1.0 / 10e9;
  double sync_seconds = 0.3e-6;  // One sync of a team, per log2 of its ranks.
};

struct CostQuery {
  // Of the longest buffer that a rank has, be it its input or its output: of the whole output of an
  // all_gather, of the root's output of a gather, of any rank's input of an all_to_all. Chunks are
  // taken to be of one size.
  std::size_t bytes = 0;
  std::size_t segment_bytes = 0;  // 0: one segment per chunk.
  // Segments under way at a time. 0: for estimate() any number, for cost() as many as double
  // buffering allows, two (one where all ranks are one team).
  std::size_t lanes = 0;
  int partial_scale = 1;  // Bytes of a partial value per byte of the dtype: 2 for f16 and bf16.
  LinkCost link = {};
  // Of messages between ranks of one host, where `hosts` says which those are: as in Shape, and it
  // must outlive the call. Reductions and syncs are priced by `link` wherever they are.
  LinkCost local_link = {};
  std::span<const std::int32_t> hosts = {};
};

struct Cost {
  double seconds = 0;  // Until the last rank has ended.
  // Messages (or syncs) on the longest path of steps that wait for each other; messages that only
  // share a port are not counted.
  std::size_t steps = 0;
  // By the rank that sends most; in mapped schedules, what it reads and writes on other ranks.
  std::size_t sent_bytes_max = 0;
};

// Plays the schedules against the model. Modelled, not measured.
//
// Every rank has one port out, one port in and one processor; each serves one step at a time, in
// the order in which steps become ready. Steps wait for each other as dependencies() says. A
// message costs 2 message_seconds + latency + bytes. Where hosts are given, the ranks of a host
// share one port out and one port in for the bytes of messages with other hosts; a rank's own ports
// are then taken for message_seconds only. A message inside a host takes the processors at both
// ends for as long as copying its bytes takes. It starts whether or not its receive has
// begun, and waits at the receiver. Of many segments the first eight are played, or the first three
// of each lane; every further one adds the average time between the ends of the last ones of all
// lanes, because a pipeline has settled by then.
//
// The schedules must pass verify(), and be those for the query's hosts.
Cost cost(std::span<const Schedule> schedules, const CostQuery& query);
Cost cost(const Algorithm& algorithm, int rank_count, const CostQuery& query);

}  // namespace stretto::schedule
