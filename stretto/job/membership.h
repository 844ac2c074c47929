// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/status.h"
#include "stretto/base/wait_limit.h"
#include "stretto/bootstrap/store.h"

namespace stretto::job {

// A process of an elastic job.
struct Member {
  std::int64_t number = 0;  // The job counts the processes that enter it, from 1.
  int launcher_rank = -1;   // The rank that its launcher gave it; -1: it has none.

  friend bool operator==(const Member&, const Member&) = default;
};

// The members of an elastic job from one change to the next, as one of them sees it.
struct Generation {
  int number = 0;  // Counted from 1.
  int rank = 0;    // Of this process.
  // By rank: the process that has been in the job for longest is rank 0.
  std::vector<Member> members = {};
  // Where they meet; nobody else uses it.
  std::shared_ptr<bootstrap::Store> store = nullptr;
  // Until they have met: lets the others know if this process ends without a word.
  std::unique_ptr<bootstrap::StoreWatch> pledge = nullptr;
};

// "3:1 4:-1": number and launcher rank of each member.
std::string format_members(const std::vector<Member>& members);
// The text may come from anyone who can write to the store. Fails with protocol.
Result<std::vector<Member>> parse_members(std::string_view text);

// The part of a process in a job whose processes come and go: it enters, meets with the others for
// one generation after the other, and leaves when this is destroyed or the process ends. Needs a
// store that executes wills, and lasts for as long as the job; a store that does not answer fails
// each call with timeout after ten seconds. Used by one thread.
class Membership {
 public:
  struct Options {
    int launcher_rank = -1;
    int first_size = 1;  // The first generation waits for so many processes.
    int min_size = 1;    // Every other one, for so many.
  };
  static Result<std::unique_ptr<Membership>> enter(std::shared_ptr<bootstrap::Store> store,
                                                   const Options& options);

  // Waits for the next generation: until all members of the last one that live have called this,
  // and enough processes. Those that come meanwhile belong to it, too. Fails with timeout, naming
  // who has not come; with aborted if the store has lost the connection to this process, which
  // the others therefore take for dead. Call leave() then, so that they do not wait for this one.
  Result<Generation> next(const WaitLimit& limit);
  // The others go on without this process, which must not call next() again.
  void leave() { life_.reset(); }
  // Whether processes wait for a generation after the last that next() has returned.
  Result<bool> has_newcomers() const;

 private:
  struct Meeting;  // Who has come for a generation, and who is missing.

  Membership(std::shared_ptr<bootstrap::Store> store, const Options& options, std::int64_t number)
      : store_(std::move(store)), options_(options), number_(number) {}
  Result<int> open_generation() const;
  Result<std::vector<Member>> members_of(int generation) const;
  Result<std::unique_ptr<bootstrap::StoreWatch>> arrive(int generation) const;
  Result<std::vector<Member>> wait_for_members(int generation, const WaitLimit& limit) const;
  Result<std::vector<std::int64_t>> numbers_under(const std::string& prefix) const;
  Result<Meeting> look(int generation, const std::vector<Member>& last) const;
  Status close(int generation, const Meeting& meeting) const;
  Status check_not_given_up() const;
  Status describe_wait(int generation, const Meeting& meeting, Duration waited) const;

  std::shared_ptr<bootstrap::Store> store_;
  const Options options_;
  const std::int64_t number_;
  std::unique_ptr<bootstrap::StoreWatch> life_;  // With it this process is gone.
  int generation_ = 0;
};

}  // namespace stretto::job
