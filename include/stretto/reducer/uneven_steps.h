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

// Lets ranks that have run out of data take part in the operations of ranks that have not: a rank
// with data announces what it will do with the other ranks; a rank without data listens, and does
// its part.
class UnevenSteps {
 public:
  enum class Phase : std::uint64_t {
    finished,   // Nothing: this rank, or every rank, has no data left.
    buffers,    // A broadcast of buffers by leader().
    gradients,  // A step of the reducer.
    joinable,   // An operation of another participant of the loop (a joinable).
  };
  struct Announcement {
    Phase phase = Phase::finished;
    // Several models may be trained in one loop. For buffers and gradients: ReducerOptions::number
    // of the model. For joinable: the index in the list of joinables.
    std::uint64_t number = 0;
    // For joinable: the number that the joinable gives to its next operation.
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

  // Called by a rank that has data. Collective with announce() and listen() of all other ranks;
  // blocks. Throws Mismatch on all ranks if ranks with data announce different things.
  void announce(Phase phase, std::uint64_t number, std::uint64_t what = 0) {
    (void)exchange({phase, number, what});
  }
  // Called by a rank that has none; returns what the others have announced. Throws Mismatch if they
  // do something without announcing it.
  Announcement listen() { return exchange({}); }

  // When any rank last had data: the lowest one that had, how many ranks had, and which.
  Rank leader() const { return leader_; }
  int ranks_with_data() const { return static_cast<int>(std::ranges::count(has_data_, true)); }
  bool has_data(Rank rank) const { return has_data_[static_cast<std::size_t>(rank.value())]; }

 protected:
  // For messages: the operation that a rank with data has announced.
  virtual std::string describe(const Announcement& announced) const;

 private:
  Announcement exchange(const Announcement& own);

  Communicator& communicator_;
  std::optional<Duration> timeout_;
  Rank leader_ = 0;
  std::vector<bool> has_data_;
};

}  // namespace stretto::reducer
