// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stretto/base/status.h"
#include "stretto/base/wait_limit.h"
#include "stretto/bootstrap/store.h"

namespace stretto::bootstrap {

// The notes that joining ranks leave for each other in the job's store: each rank writes under keys
// of its own, "card/3", and a rank that fails writes that the join has failed and why. Used by one
// thread.
class JoinNotes {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    Deadline deadline = {};
    // Time between two warnings that name the missing ranks.
    Duration reminder = std::chrono::seconds(15);
  };
  JoinNotes(std::shared_ptr<Store> store, const Options& options)
      : store_(std::move(store)), options_(options) {}
  JoinNotes(const JoinNotes&) = delete;
  JoinNotes& operator=(const JoinNotes&) = delete;

  // Takes this rank's place in the job: from here on the other ranks hear if this one fails or its
  // process ends. Fails with refused, naming both processes, if another process has taken this
  // place before. Then this process has no part in the job, and its end affects no rank.
  Status arrive();
  // Gives the place up: the end of this process no longer affects the join. To be called right
  // after arrive().
  Status withdraw();
  bool has_place() const { return placed_; }
  // Waits until all ranks have taken their places. Rank 0 tells the others.
  Status wait_for_arrivals();
  // Says that this rank is connected. From here on its end no longer fails the join of all, unless
  // it is rank 0.
  Status finish();
  // The failure of the join that the store knows; ok if there is none.
  Status failure_in_store() const;
  // Tells all others that this rank cannot join, if it has taken its place. Returns the failure to
  // report: that of another rank if that rank failed before, else `why`.
  Status abandon(const Status& why);

  // A limit that ends a wait at the join's deadline, when the join has failed for all, or by
  // end_waits_by().
  WaitLimit limit() const;
  // From now on waits also end when `failure` returns a failure. It is for failures of this rank
  // during a wait for other ranks, which may themselves be waiting for what has failed. Null: no
  // such failure.
  void end_waits_by(WaitLimit::Interruption failure) { own_failure_ = std::move(failure); }
  // Writes `value` under "NAME/RANK" of this rank.
  Status tell(const std::string& name, const std::string& value);
  Result<std::string> get(const std::string& key) const;
  // What rank `rank` wrote under "NAME/RANK". Fails with timeout, naming all ranks that never came,
  // or, if all have come, this one, the store and its address, and how long this took.
  Result<std::string> get(const std::string& name, int rank) const;
  // The same for several ranks, in the order of `ranks`. If all have come, a timeout names those of
  // `ranks` that have written nothing.
  Result<std::vector<std::string>> get_all(const std::string& name,
                                           std::span<const int> ranks) const;
  // Writes `own` under this rank's key, and returns what each rank wrote under its own.
  Result<std::vector<std::string>> exchange(const std::string& name, const std::string& own);
  // Waits until the key's value differs from `old`, and returns the value. Fails with timeout if it
  // has not changed by `until`. Logs a warning with `why` every `reminder`.
  Result<std::string> get_changed(const std::string& key, const std::string& old,
                                  const std::string& why, Deadline until) const;
  // On rank 0: waits until all ranks have called finish(), and tells them. Until then the end of
  // rank 0 fails the join of all.
  Status end_join();
  // On the other ranks: waits until rank 0 has said so.
  Status wait_for_join() const;
  // Waits until all ranks have come, so that they can learn of a failure. Waits about one second at
  // most, and not beyond the join's deadline.
  void wait_for_late_ranks() const;
  // Waits until the store has ended.
  Status wait_for_end() const;

  Store& store() const { return *store_; }

 private:
  Status look() const;
  Status check_failures() const;
  Status explain(const Status& status) const;
  std::string waited() const;
  std::string describe_missing(const std::string& name, std::span<const int> ranks) const;
  std::string refused_peer() const;
  std::vector<int> all_ranks() const;
  std::vector<int> ranks_without(const std::string& name, std::span<const int> ranks,
                                 Deadline deadline) const;

  std::shared_ptr<Store> store_;
  Options options_;
  TimePoint start_ = Clock::now();
  bool placed_ = false;
  std::unique_ptr<StoreWatch> watch_;
  WaitLimit::Interruption own_failure_;
  mutable Status failure_;  // The failure that look() has seen.
  // Whether failure_ was written by a rank or server, and is not the store's end.
  mutable bool told_ = false;
};

// For a launcher that has seen the end of a rank. `how` describes it, for example "exit status 3".
// If the rank had not joined yet, the join fails for all. Blocks for two seconds at most.
Status report_end(Store& store, int rank, std::string_view how);
// Whether all ranks of a job have joined. Blocks for two seconds at most.
Result<bool> have_all_joined(Store& store, int size);

}  // namespace stretto::bootstrap
