// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/operation.h"
#include "stretto/base/status.h"
#include "stretto/group/link_model.h"
#include "stretto/schedule/algorithms.h"
#include "stretto/schedule/estimate.h"

namespace stretto::group {

// The algorithms with which an operation runs: by messages, or on mapped memory (`direct` if all
// buffers are registered, else `staged`).
struct Choice {
  const schedule::Algorithm* messages = nullptr;
  const schedule::Algorithm* direct = nullptr;
  const schedule::Algorithm* staged = nullptr;
};

// Chooses algorithms. Every rank must choose alike, so the choice rests only on what all ranks
// know: the operation, the ranks and their hosts, and the model of the links. Sizes are rounded up
// to a power of two first. Candidates are priced in closed form (schedule/estimate.h), so a choice
// takes microseconds for any number of ranks. Immutable: any thread may use it.
class Selector {
 public:
  // What the choice depends on, besides the operation.
  struct Setting {
    int rank_count = 1;
    HostList hosts = {};
    LinkModel links = {};
    bool has_core_for_each_rank = true;
    // Whether the ranks of each host have mapped each other's windows, though not all ranks have.
    bool has_teams = false;
    std::size_t cache_bytes = 0;    // The smallest last-level cache of all ranks.
    std::size_t segment_bytes = 0;  // Bytes of a segment at most; 0: chosen.
  };
  explicit Selector(Setting setting);

  // The algorithm called `wanted`, or the best that keeps the canonical order. `mapped`: all ranks
  // of the group have mapped each other's windows. `equal_chunks`: ranks have equal shares. Fails
  // with invalid_argument, listing the algorithms that can be used.
  Result<Choice> choose(const OperationDescriptor& operation, std::string_view wanted, bool mapped,
                        bool equal_chunks) const;

  // Whether a single copy is faster than staging for private buffers in huge pages.
  bool prefers_single_copy(const OperationDescriptor& operation) const;

  struct Candidate {
    const schedule::Algorithm* algorithm = nullptr;
    double seconds = 0;  // As the model predicts.
    // The same if the bytes on a link took no time. Only computed for candidates within kSameCost
    // of the cheapest, if there are several; else 0.
    double seconds_beside_wire = 0;
  };
  // The sizes that decide the choice on mapped memory: "one sync up to 2048 bytes a rank (private
  // buffers: 524288), as each rank has a core".
  std::string mapped_thresholds(Collective collective) const;

  // Costs that differ by this share or less count as equal: predictions are not more precise.
  static constexpr double kSameCost = 0.03;
  // The algorithms by messages among which it chooses, the chosen one first, then by cost. Of those
  // whose costs count as equal to the least it chooses the one that does least besides sending
  // bytes; on a network with a long latency it prefers one that does not send everything at once.
  std::vector<Candidate> candidates(const OperationDescriptor& operation, bool equal_chunks) const;
  // Algorithms that run only if they are named, because the bits of their results depend on the
  // hosts of the ranks.
  std::vector<Candidate> others(const OperationDescriptor& operation) const;

  // The segment size for an algorithm by messages; its estimate uses it, too. All ranks get the
  // same value, since both ends of a message must cut chunks alike.
  std::size_t segment_bytes(const schedule::Algorithm& algorithm,
                            const OperationDescriptor& operation) const;
  // How many segments are under way at a time, each of `segment_bytes` of all chunks together. On a
  // network with a long latency, as many as fill it for a round trip.
  std::size_t lanes(const schedule::Algorithm& algorithm, std::size_t segment_bytes) const;

  // How many lanes a team's collectives use in turn (see execution::TeamLanes).
  std::size_t team_lanes() const;

  const LinkModel& links() const { return setting_.links; }

 private:
  const schedule::LinkCost& link() const;  // Between hosts if there are several, else inside.
  double bytes_under_way() const;
  std::size_t lanes_max(const schedule::Algorithm& algorithm) const;
  bool stages_in_caches() const;  // Rather than to keep a slow network busy.
  bool is_usable(const schedule::Algorithm& algorithm, bool mapped, bool equal_chunks) const;
  bool fits_lanes(const schedule::Algorithm& algorithm) const;
  const schedule::Algorithm* find(Collective collective, std::string_view called, bool mapped,
                                  bool equal_chunks) const;
  std::string names(Collective collective, bool mapped, bool equal_chunks) const;
  schedule::CostQuery query(const schedule::Algorithm& algorithm,
                            const OperationDescriptor& operation) const;
  double estimate(const schedule::Algorithm& algorithm, const OperationDescriptor& operation) const;
  double estimate_beside_wire(const schedule::Algorithm& algorithm,
                              const OperationDescriptor& operation) const;
  std::size_t of_each(double bytes_of_all_ranks) const {
    return static_cast<std::size_t>(bytes_of_all_ranks / setting_.rank_count);
  }
  bool is_one_long_exchange(const Candidate& candidate) const;
  std::size_t one_sync_bytes(Collective collective) const;
  std::size_t one_sync_private_bytes(Collective collective) const;
  Choice choose_mapped(const OperationDescriptor& operation, bool equal_chunks) const;
  const schedule::Algorithm* best(const OperationDescriptor& operation, bool equal_chunks) const;

  Setting setting_;
  schedule::HostSummary summary_;
};

}  // namespace stretto::group
