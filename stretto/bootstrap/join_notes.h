// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>

#include "stretto/base/clock.h"
#include "stretto/base/status.h"
#include "stretto/bootstrap/store.h"

namespace stretto::bootstrap {

// Waits in a store for what every rank writes under a key of its own, "card/3", and says who is
// missing: in a warning every 15 s, and in the failure when the deadline has passed.
class RankNotes {
 public:
  // Counts the time from here on. `store` must outlive it.
  RankNotes(Store& store, int size, Deadline deadline)
      : store_(store), size_(size), deadline_(deadline) {}

  // What rank `rank` wrote under "NAME/RANK". Fails with timeout, naming all ranks that have not
  // written theirs, the store and its address, and how long this took.
  Result<std::string> get(const std::string& name, int rank) const;

  // For tests.
  void set_reminder(Duration every) { reminder_ = every; }

 private:
  std::string describe_missing(const std::string& name, int rank) const;

  Store& store_;
  int size_;
  Deadline deadline_;
  TimePoint start_ = Clock::now();
  Duration reminder_ = std::chrono::seconds(15);
};

}  // namespace stretto::bootstrap
