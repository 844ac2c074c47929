// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <limits>
#include <string>
#include <vector>

#include "stretto/communicator/communicator.h"
#include "stretto/group/link_model.h"

namespace stretto::communicator {

inline constexpr int kProbeTag = std::numeric_limits<int>::max();  // Of messages that measure.

// Of rounds in which all send at once: of all but the slowest tenth, which something else on the
// cores has made longer. A round may take no time because the peers are ahead, so a quick one says
// nothing. At least one round.
double mean_of_faster(std::vector<double> seconds_of_rounds);
// The value that such a share of them, less than 1, is below. At least one value.
double quantile(std::vector<double> values, double share);

// Who takes part in measuring what messages between hosts take: up to four ranks of each of the
// first four hosts.
struct Contenders {
  // `hosts`: of all ranks.
  Contenders(const group::HostList& hosts, Rank self);

  std::vector<std::vector<Rank>> ranks;  // By host.
  // With whom this rank exchanges messages while pairs measure: one, on another host if it can, or
  // those who wait for it; one of an odd number may have nobody.
  std::vector<Rank> partner;
  std::vector<Rank> near;    // On its own host.
  std::vector<Rank> others;  // On other hosts; none where it does not take part.
};

// What messages between hosts take where all ranks send them at once, as they do in collectives:
// ranks that share a host's cores wait for them, and each peer has a socket of its own. Not thread
// safe.
class ContentionProbe {
 public:
  // `hosts`: of all ranks of `world`, which outlives this; two at least.
  ContentionProbe(Communicator& world, const group::HostList& hosts)
      : world_(world), who_(hosts, world.rank()) {}

  bool takes_part() const { return !who_.others.empty(); }
  // "2+2": those of each host that take part.
  std::string describe() const;

  // As one of them that is in a pair has measured it.
  struct Times {
    double pair_seconds = 0;  // Pairs of ranks send each other a message...
    double all_seconds = 0;   // ...or each sends all that are on other hosts one...
    int peers_max = 0;        // ...which are so many for the one who has most.
    // All pairs of two hosts together send so many bytes one way. 0: not measured.
    double many_bytes = 0;
    double many_seconds = 0;
    // Per byte of few, which pass at once.
    double burst_seconds_per_byte = 0;
    // Per byte that a rank reads while all reduce what their caches do not hold.
    double reduce_seconds_per_byte = 0;
  };
  // Longer messages that all pairs send each other at once, each way.
  struct Load {
    std::int32_t rounds = 0;  // 0: nothing is measured.
    std::int32_t messages = 1;
    std::int32_t bytes = 1;  // Of each.
  };
  struct Rounds {
    std::int32_t turns = 2;    // In which all is measured.
    std::int32_t of_byte = 0;  // Pairs of rounds of a message of a byte; 0: nothing is measured.
    Load many = {};            // More bytes than pass at once.
    Load few = {};             // Fewer.
  };
  static constexpr int kRoundsMax = 200;
  // For rank 0, whose pair has measured `cost` while the others waited.
  Rounds rounds_for(const schedule::LinkCost& cost, double small_round_seconds) const;
  // By all that take part. Rank 0, which is in a pair, says what is measured, and tells the others.
  // Blocks until all have done it.
  Times run(Rounds rounds);

 private:
  std::size_t pairs() const;
  void tell(Rounds& rounds);
  // Messages of so many bytes, to and from each of them.
  void exchange(const std::vector<Rank>& peers, std::size_t bytes);
  void small_messages(const Rounds& rounds, Times& times);
  template <class Body>
  double time_of(const Body& body, int turns, const Times& times);
  double load_seconds(const Load& load, int turns, const Times& times);
  double bytes_of(const Load& load) const;
  double reduce_seconds_per_byte(int turns, const Times& times);

  Communicator& world_;
  const Contenders who_;
  std::vector<std::uint8_t> buffer_;  // Of messages.
};

// The model's terms, by which a message costs both its ends message_seconds, one after the other,
// and the rest is the way.
void set_shared_costs(const ContentionProbe::Times& times, schedule::LinkCost& cost);

}  // namespace stretto::communicator
