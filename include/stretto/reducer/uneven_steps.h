// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/id.h"
#include "stretto/communicator/communicator.h"

namespace stretto::reducer {

// Lets ranks that have run out of data keep those company that have not: whoever has data says what
// it is about to do together with the others, and who has none hears it and does its part.
class UnevenSteps {
 public:
  enum class Phase : std::uint64_t {
    finished,   // Nothing any more: this rank, or every one, has no data left.
    buffers,    // A broadcast of buffers by leader().
    gradients,  // A step of the reducer.
    joinable,   // What something else does that takes part in the loop.
  };
  struct Announcement {
    Phase phase = Phase::finished;
    // Several models may be trained in one loop: buffers and gradients are those of the model with
    // this ReducerOptions::number. Phase::joinable: its index in the list of what else takes part.
    std::uint64_t number = 0;
    // Phase::joinable: which of its operations it is about to run, in numbers of its own.
    std::uint64_t what = 0;
    friend bool operator==(const Announcement&, const Announcement&) = default;
  };

  explicit UnevenSteps(Communicator& communicator, std::optional<Duration> timeout = std::nullopt)
      : communicator_(communicator),
        timeout_(timeout),
        has_data_(static_cast<std::size_t>(communicator.size())) {}
  UnevenSteps(const UnevenSteps&) = delete;
  UnevenSteps& operator=(const UnevenSteps&) = delete;
  virtual ~UnevenSteps() = default;

  // Of a rank that has data. Collective with the announce() and listen() of all others; blocks.
  // Throws Mismatch, on all ranks, if ranks with data are about to do different things.
  void announce(Phase phase, std::uint64_t number, std::uint64_t what = 0) {
    (void)exchange({phase, number, what});
  }
  // Of a rank that has none: what the others are about to do. Throws Mismatch if they do something
  // without having announced it.
  Announcement listen() { return exchange({}); }

  // The lowest rank that had data when last any had, how many had, and which.
  Rank leader() const { return leader_; }
  int ranks_with_data() const { return static_cast<int>(std::ranges::count(has_data_, true)); }
  bool has_data(Rank rank) const { return has_data_[static_cast<std::size_t>(rank.value())]; }

 protected:
  // For messages: what a rank that has data is about to run.
  virtual std::string describe(const Announcement& announced) const;

 private:
  Announcement exchange(const Announcement& own);

  Communicator& communicator_;
  std::optional<Duration> timeout_;
  Rank leader_ = 0;
  std::vector<bool> has_data_;
};

}  // namespace stretto::reducer
