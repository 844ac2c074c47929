// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <chrono>
#include <limits>
#include <string>
#include <vector>

#include "stretto/communicator/communicator.h"
#include "stretto/group/link_model.h"

namespace stretto::communicator {

inline constexpr int kProbeTag = std::numeric_limits<int>::max();  // Of messages that measure.
// In which a shaper saves up what it lets through.
inline constexpr std::chrono::milliseconds kRest(2);

// Of rounds in which all send at once: of all but the slowest tenth, which something else on the
// cores has made longer. A round may take no time because the peers are ahead, so a quick one says
// nothing. At least one round.
double mean_of_faster(std::vector<double> seconds_of_rounds);

// What messages between hosts take where all ranks send them at once, as they do in collectives:
// ranks that share a host's cores wait for them, and each peer has a socket of its own. Up to four
// ranks of each of the first four hosts take part. Not thread safe.
class ContentionProbe {
 public:
  // `hosts`: of all ranks of `world`, which outlives this; two at least.
  ContentionProbe(Communicator& world, const group::HostList& hosts);

  bool takes_part() const { return !others_.empty(); }
  // "2+2": those of each host that take part.
  std::string describe() const;

  // As one of them that is in a pair has measured it.
  struct Times {
    double pair_seconds = 0;  // Pairs of ranks send each other a message...
    double all_seconds = 0;   // ...or each sends all that are on other hosts one...
    int peers_max = 0;        // ...which are so many for the one who has most.
    // Per byte that all pairs of two hosts together send one way. 0: not measured.
    double seconds_per_byte = 0;
  };
  // How often ranks send each other messages to measure what those take.
  struct Rounds {
    std::int32_t of_byte = 0;        // One message of one byte; 0: nothing is measured.
    std::int32_t of_load = 0;        // Several longer messages; 0: their bytes are not measured.
    std::int32_t load_messages = 1;  // Between two ranks, each way.
    std::int32_t load_bytes = 1;     // Of each.
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
  double mean_round(const std::vector<Rank>& peers, int rounds, std::size_t message_bytes);

  Communicator& world_;
  std::vector<std::vector<Rank>> ranks_;  // That take part, by host.
  std::vector<Rank> partner_;             // Of this rank: one, on another host if it can; or none.
  std::vector<Rank> others_;              // On other hosts; none where it does not take part.
};

// The model's terms, by which a message costs both its ends message_seconds, one after the other,
// and the rest is the way.
void set_shared_costs(const ContentionProbe::Times& times, schedule::LinkCost& cost);

}  // namespace stretto::communicator
