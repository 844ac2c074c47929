// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/communicator/communicator.h"

namespace stretto::reducer {

// Where a rank is in training; must be equal on all ranks when a step ends.
struct StepPosition {
  std::uint64_t reducer = 0;
  std::uint64_t step = 0;  // Of the reducer, counted from 1.
  std::uint64_t epoch = 0;
  std::uint64_t steps_before_epoch = 0;
  std::uint64_t buckets = 0;  // A hash of which gradients share a bucket.
};

// What ranks tell each other at the end of each step: which step it is, and what happened to each
// gradient. One all_reduce of a few words, the bitwise "or" over all ranks. It runs together with
// that of the last bucket, so it costs no extra time.
class StepReport {
 public:
  // What happened to a gradient on a rank. A rank without data does not report the first three.
  enum class Use : std::uint8_t {
    used,    // Computed in this step.
    unused,  // Expected, but not computed.
    frozen,  // Not expected.
    // In addition to one of these:
    changed,   // Not computed as static_graph promised.
    repeated,  // Computed again after it was marked ready.
  };
  // What a rank wants all ranks to do, or to know, after this step.
  enum class Request : std::uint8_t {
    rebuild,
    verification,     // Compare the replicas.
    graph_changed,    // A rank's autograd graph has changed.
    other_gradients,  // A rank needs a Reducer of other gradients.
  };

  StepReport(Communicator& communicator, std::size_t gradients);

  // Begins the report of a step. `position` must be equal on all ranks, see same_position().
  void begin(const StepPosition& position);
  void say(std::size_t gradient, Use use) { set(own_, word_of(use), gradient); }
  // May also be called before begin(); lasts until the next exchange().
  void request(Request request) { own_[kRequests] |= std::uint64_t{1} << bit(request); }
  void withdraw(Request request) { own_[kRequests] &= ~(std::uint64_t{1} << bit(request)); }

  // Collective. The calls that follow are valid when the work has ended.
  Work exchange(const std::optional<Duration>& timeout);
  // Whether all ranks have ended a step at the same position. If not, the rest of the report means
  // nothing.
  bool same_position() const { return (all_[kPosition] & all_[kNotPosition]) == 0; }
  bool any_rank_says(std::size_t gradient, Use use) const {
    return get(all_.span(), word_of(use), gradient);
  }
  // Whether some rank says so about any gradient.
  bool any_rank_says(Use use) const;
  bool requested(Request request) const {
    return (all_[kRequests] >> bit(request) & std::uint64_t{1}) != 0;
  }

  // The reports of all ranks, by rank, for an error message. Collective, blocks; call it on all
  // ranks or on none.
  struct OfRank {
    std::size_t rank = 0;  // Its number in the job.
    StepPosition position;
    std::vector<std::uint64_t> words;
  };
  std::vector<OfRank> gather(const std::optional<Duration>& timeout) const;
  bool says(const OfRank& rank, std::size_t gradient, Use use) const {
    return get(rank.words, word_of(use), gradient);
  }

 private:
  // The position is sent as its hash and the complement of that. Unless all ranks send the same
  // hash, some bit of the "or" is set in both.
  enum Word : std::size_t { kPosition, kNotPosition, kRequests, kFirstUse };
  static constexpr std::size_t kBits = 64;
  static constexpr std::size_t kUses = 5;

  static unsigned bit(Request request) { return static_cast<unsigned>(request); }
  std::size_t word_of(Use use) const {
    return kFirstUse + static_cast<std::size_t>(use) * use_words_;
  }
  static void set(std::span<std::uint64_t> words, std::size_t first, std::size_t index) {
    words[first + index / kBits] |= std::uint64_t{1} << (index % kBits);
  }
  static bool get(std::span<const std::uint64_t> words, std::size_t first, std::size_t index) {
    return (words[first + index / kBits] >> (index % kBits) & 1) != 0;
  }

  Communicator& communicator_;
  const std::size_t use_words_;  // Words for one Use of all gradients.
  StepPosition position_;
  std::vector<std::uint64_t> own_;  // The report of this rank.
  Buffer<std::uint64_t> all_;       // A copy of it, then the "or" over all ranks.
};

// Advice for ranks that have run out of batches at different steps.
inline constexpr const char* kEquallyManySteps =
    "Ranks must run equally many steps: drop the batches that not all have, or let "
    "DistributedDataParallel::join() run the loop";

// For ranks at different positions: says where they are, why, and what to do.
std::string describe_positions(const std::vector<StepReport::OfRank>& ranks);
// For a report in which gradients of some rank are missing: "2 parameters got no gradient on rank
// 1: b.weight, b.bias; used on ranks 0, 2." and so on. `names` are those of the gradients.
std::string describe_missing(const StepReport& report, const std::vector<StepReport::OfRank>& ranks,
                             const std::vector<std::string>& names);
// The same if a gradient is frozen on some ranks and not on others.
std::string describe_frozen(const StepReport& report, const std::vector<StepReport::OfRank>& ranks,
                            const std::vector<std::string>& names);

// The same if a gradient is `use` on some rank: changed or repeated.
std::string describe_other_counts(const StepReport& report,
                                  const std::vector<StepReport::OfRank>& ranks,
                                  const std::vector<std::string>& names, StepReport::Use use);

// "rank 0", "ranks 1, 3"; long lists are cut off.
std::string rank_list(const std::vector<std::size_t>& ranks);

}  // namespace stretto::reducer
