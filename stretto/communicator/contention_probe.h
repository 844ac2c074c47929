// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <limits>
#include <string>
#include <vector>

#include "stretto/communicator/communicator.h"
#include "stretto/group/link_model.h"

namespace stretto::communicator {

// The tag of messages that measure.
inline constexpr int kProbeTag = std::numeric_limits<int>::max();

// The mean time of rounds in which all ranks send at once, without the slowest tenth, which other
// work on the cores has made longer. It is no minimum, because a round may take no time when the
// peers are ahead. Needs at least one round.
double mean_of_faster(std::vector<double> seconds_of_rounds);
// The value below which a share of `values` lies; `share` is less than 1. Needs at least one value.
double quantile(std::vector<double> values, double share);

// The ranks that measure messages between hosts: up to four ranks of each of the first four hosts.
struct Contenders {
  // `hosts`: the host of each rank; negative: the rank takes no part.
  Contenders(const group::HostList& hosts, Rank self);

  std::vector<std::vector<Rank>> ranks;  // By host.
  // The ranks with which this one exchanges messages while pairs measure. Usually one, on another
  // host if possible. The first rank of a host also serves those of its host that have no partner
  // there. May be empty if the number of ranks is odd.
  std::vector<Rank> partner;
  std::vector<Rank> near;    // The other ranks of its own host.
  std::vector<Rank> others;  // Ranks on other hosts; empty if this rank takes no part.
};

// Measures messages between hosts while all ranks send at once, as they do in collectives: ranks
// that share a host's cores wait for cores, and each peer has its own socket. Not thread safe.
class ContentionProbe {
 public:
  // `hosts`: the host of each rank of `world`, at least two hosts. `world` must outlive the probe.
  ContentionProbe(Communicator& world, const group::HostList& hosts)
      : world_(world), who_(hosts, world.rank()) {}

  bool takes_part() const { return !who_.others.empty(); }
  // How many ranks of each host take part: "2 of node01, 2 of node02". `names`: each rank's host.
  std::string describe(const RankVector<std::string>& names) const;

  // Times measured by a rank that is in a pair.
  struct Times {
    double pair_seconds = 0;  // While each pair of ranks exchanges a message.
    double all_seconds = 0;   // While each sends one to all ranks on other hosts.
    int peers_max = 0;        // Most peers on other hosts that a rank has.
    // All pairs of two hosts together send `many_bytes` one way in `many_seconds`. 0: not measured.
    double many_bytes = 0;
    double many_seconds = 0;
    // Per byte, for bytes so few that a shaper lets them through at once.
    double burst_seconds_per_byte = 0;
    // Per byte read, while all ranks reduce buffers that their caches do not hold.
    double reduce_seconds_per_byte = 0;
  };
  // Longer messages that all pairs send at once, in both directions.
  struct Load {
    std::int32_t rounds = 0;  // 0: nothing is measured.
    std::int32_t messages = 1;
    std::int32_t bytes = 1;  // Bytes of each message.
  };
  struct Rounds {
    std::int32_t turns = 2;    // How often each measurement is repeated.
    std::int32_t of_byte = 0;  // Pairs of rounds with messages of one byte; 0: nothing is measured.
    Load many = {};            // More bytes than a shaper lets through at once.
    Load few = {};             // Fewer bytes than that.
  };
  static constexpr int kRoundsMax = 200;
  // Chooses the rounds by `cost`, which the leading pair has measured while the others waited.
  Rounds rounds_for(const schedule::LinkCost& cost, double small_round_seconds) const;
  // Called by all ranks that take part. The first of them, which is in a pair, decides on `rounds`
  // and tells the others. Blocks until all have measured.
  Times run(Rounds rounds);

 private:
  std::size_t pairs() const;
  void tell(Rounds& rounds);
  // Exchanges messages of `bytes` bytes with each of `peers`.
  void exchange(const std::vector<Rank>& peers, std::size_t bytes);
  void small_messages(const Rounds& rounds, Times& times);
  template <class Body>
  double time_of(const Body& body, int turns, const Times& times);
  double load_seconds(const Load& load, int turns, const Times& times);
  double bytes_of(const Load& load) const;
  double reduce_seconds_per_byte(int turns, const Times& times);

  Communicator& world_;
  const Contenders who_;
  std::vector<std::uint8_t> buffer_;  // The bytes of messages.
};

// Converts `times` to the model's terms: a message costs each end message_seconds, one after the
// other, and the rest of its time is latency.
void set_shared_costs(const ContentionProbe::Times& times, schedule::LinkCost& cost);

}  // namespace stretto::communicator
