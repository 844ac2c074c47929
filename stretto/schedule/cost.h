// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "stretto/schedule/algorithms.h"

namespace stretto::schedule {

// The speed of a link and of a rank in the alpha-beta-gamma model (Thakur, Rabenseifner and Gropp,
// 2005).
struct LinkCost {
  double latency_seconds = 10e-6;  // alpha: latency of a message of 0 bytes.
  double message_seconds = 1e-6;   // Time per message at the sender, and again at the receiver.
  double seconds_per_byte = 1.0 / 1e9;  // beta. Both directions have this speed at the same time.
  // For estimate(). Replaces `message_seconds`, if greater, for a message that a rank sends while
  // another of its messages is under way. It is high where ranks share cores or use a socket for
  // each peer.
  double further_message_seconds = 0;
  // For estimate(). Bytes that pass at once after an idle time of the link, as where a token bucket
  // shapes it.
  double burst_bytes = 0;
  // For estimate(). Time per byte of `burst_bytes`, which processors limit.
  double burst_seconds_per_byte = 0;
  // gamma: per byte that a reduce or copy reads, and per byte that it writes to any target but the
  // first.
  double reduce_seconds_per_byte = 1.0 / 10e9;
  double sync_seconds = 0.3e-6;  // One sync of a team, per log2 of its ranks.
};

struct CostQuery {
  // Bytes of the longest input or output of any rank: of the whole output of an all_gather, of the
  // root's output of a gather, of any rank's input of an all_to_all. All chunks are assumed to have
  // the same size.
  std::size_t bytes = 0;
  std::size_t segment_bytes = 0;  // 0: one segment per chunk.
  // Segments under way at a time. 0 means: in estimate(), no limit; in cost(), as many as double
  // buffering allows, which is two (one where all ranks are one team).
  std::size_t lanes = 0;
  int partial_scale = 1;  // Bytes of a partial value per byte of the dtype: 2 for f16 and bf16.
  LinkCost link = {};
  // The link for messages between ranks of one host, as far as `hosts` is given. `hosts` is as in
  // Shape, and its memory must outlive the call. `link` gives the cost of reductions and syncs in
  // any case.
  LinkCost local_link = {};
  std::span<const std::int32_t> hosts = {};
};

struct Cost {
  double seconds = 0;  // Until the last rank has ended.
  // Messages and syncs on the longest path of steps that wait for each other. Messages that only
  // share a port do not count.
  std::size_t steps = 0;
  // Bytes that the busiest rank sends. In mapped schedules: bytes that it reads and writes on other
  // ranks.
  std::size_t sent_bytes_max = 0;
};

// Simulates the schedules in the model. The result is a prediction, not a measurement.
//
// Every rank has one port out, one port in and one processor. Each of them serves one step at a
// time, in the order in which steps become ready. Steps wait for each other as dependencies() says.
// A message costs 2 * message_seconds + latency + the time for its bytes. It starts whether or not
// its receive has begun, and waits at the receiver. Where hosts are given, the ranks of a host
// share one port out and one port in for the bytes of messages with other hosts; a rank's own ports
// are then busy for message_seconds only. A message inside a host keeps the processors at both ends
// busy while its bytes are copied. Of many segments only the first eight are simulated, or the
// first three of each lane if these are more. Each further segment adds the average time between
// the ends of the last segments of all lanes, because the pipeline is in a steady state by then.
//
// The schedules must pass verify() and must have been built for the hosts of the query.
Cost cost(std::span<const Schedule> schedules, const CostQuery& query);
Cost cost(const Algorithm& algorithm, int rank_count, const CostQuery& query);

}  // namespace stretto::schedule
