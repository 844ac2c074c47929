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

// What ranks that join a job tell each other in its store: what each writes under a key of its own,
// "card/3", and that the join has failed and why. Used by one thread.
class JoinNotes {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    Deadline deadline = {};
    // Between two warnings that say who is missing.
    Duration reminder = std::chrono::seconds(15);
  };
  JoinNotes(std::shared_ptr<Store> store, const Options& options)
      : store_(std::move(store)), options_(options) {}
  JoinNotes(const JoinNotes&) = delete;
  JoinNotes& operator=(const JoinNotes&) = delete;

  // Takes this rank's place: from here on the others are told if it fails, or ends without a word.
  // Fails with refused, naming both, if another process has come as this rank before; what becomes
  // of this one is not the job's concern then.
  Status arrive();
  // This process turns out to have no place in the job: what becomes of it is not the job's
  // concern. To be called right after arrive().
  Status withdraw();
  // Whether it has this rank's place.
  bool has_place() const { return placed_; }
  // Waits until all ranks have taken their places, of which rank 0 tells the others.
  Status wait_for_arrivals();
  // This rank is connected: unless it is rank 0, its end no longer ends the join of all.
  Status finish();
  // What has ended the join so far, as the store knows it.
  Status failure_in_store() const;
  // Tells all others that this rank cannot join, if it has taken its place. Returns the failure to
  // report: if another rank has failed before, that one's.
  Status abandon(const Status& why);

  // Ends a wait at the join's deadline, when the join has failed for all, or by end_waits_by().
  WaitLimit limit() const;
  // From now on `failure` ends waits as well, as soon as it returns one: what goes wrong on this
  // rank while it waits for others, who may be waiting for just that. Null: nothing does.
  void end_waits_by(WaitLimit::Interruption failure) { own_failure_ = std::move(failure); }
  // Writes `value` under "NAME/RANK" of this rank.
  Status tell(const std::string& name, const std::string& value);
  Result<std::string> get(const std::string& key) const;
  // What rank `rank` wrote under "NAME/RANK". Fails with timeout, naming all ranks that never came,
  // or, if all have come, this one, the store and its address, and how long this took.
  Result<std::string> get(const std::string& name, int rank) const;
  // The same of several ranks, in their order; named are those of them that have written nothing.
  Result<std::vector<std::string>> get_all(const std::string& name,
                                           std::span<const int> ranks) const;
  // What each rank tells under a name, this one `own`.
  Result<std::vector<std::string>> exchange(const std::string& name, const std::string& own);
  // The value of a key that is there, once it is no longer `old`. Fails with timeout if it is that
  // at `until`. A wait that takes long is told now and then, with `why`.
  Result<std::string> get_changed(const std::string& key, const std::string& old,
                                  const std::string& why, Deadline until) const;
  // On rank 0: waits until all ranks have finished, and tells them. Until then its end, too, ends
  // the join of all.
  Status end_join();
  // On the others: waits until rank 0 has told so.
  Status wait_for_join() const;
  // Waits until all ranks have come, so that they can learn of a failure; for a few seconds at
  // most, and not beyond the join's deadline.
  void wait_for_late_ranks() const;
  // Waits until whoever provides the store has ended it.
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
  mutable Status failure_;     // What look() has seen.
  mutable bool told_ = false;  // Whether that is what somebody has written, not the store's end.
};

// For a launcher that has seen a rank end, with "exit status 3", say: if the rank had not joined
// yet, the join fails for all. Blocks for two seconds at most.
Status report_end(Store& store, int rank, std::string_view how);
// Whether all ranks of a job have joined. Blocks for two seconds at most.
Result<bool> have_all_joined(Store& store, int size);

}  // namespace stretto::bootstrap
