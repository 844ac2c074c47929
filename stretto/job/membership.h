// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <functional>
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
  int since = 0;            // The first generation in which it has met the others.
  int launcher_rank = -1;   // The rank that its launcher gave it; -1: it has none.

  friend bool operator==(const Member&, const Member&) = default;
};

// The members of an elastic job from one change to the next, as one of them sees it.
struct Generation {
  int number = 0;  // Counted from 1.
  int rank = 0;    // Of this process.
  // By rank. Members that met the others in an earlier generation come first.
  std::vector<Member> members = {};
  // The store in which they meet; nobody else uses it. A wait in it fails with peer_lost when a
  // member has left the job or died.
  std::shared_ptr<bootstrap::Store> store = nullptr;
};

// "3:1:0 4:2:-1": number, first generation and launcher rank of each member.
std::string format_members(const std::vector<Member>& members);
// The text may come from anyone who can write to the store. Fails with protocol if it is malformed.
Result<std::vector<Member>> parse_members(std::string_view text);

// A process's membership in a job whose processes come and go. The process enters the job, meets
// the others for one generation after another, and leaves when this object is destroyed or the
// process ends. Needs a store that executes wills and lasts as long as the job. Used by one thread.
class Membership {
 public:
  // The prefix of the keys in a launcher's store, and the key that is there once a process has
  // entered.
  static constexpr std::string_view kStorePrefix = "elastic/";
  static constexpr std::string_view kEntered = "entered";

  struct Options {
    int launcher_rank = -1;
    // How many processes the first generation waits for. Empty: a process that knows how many the
    // launcher starts decides that the generation is complete.
    std::optional<int> first_size = std::nullopt;
    // Each generation waits for at least so many processes.
    int min_size = 1;
    // What must be the same in all processes, as readable text: "backend stretto, ...".
    std::string settings = {};
  };
  // Enters the job. Fails with mismatch if the settings differ from those of the first process.
  static Result<std::unique_ptr<Membership>> enter(std::shared_ptr<bootstrap::Store> store,
                                                   const Options& options, const WaitLimit& limit);

  // Waits for the next generation: until all living members of the last one have called this, and
  // enough processes have come. Processes that come meanwhile belong to it, too. Returns nothing if
  // the job has finished. Fails with timeout, naming who has not come; with peer_lost or system if
  // the store is gone; with aborted after leave(), or if the store has lost the connection to this
  // process, so that the others take it for dead. May be called again.
  Result<std::optional<Generation>> next(const WaitLimit& limit);
  // To be called when all members of `generation` have met. On rank 0, removes the keys of older
  // ones.
  void note_meeting(const Generation& generation);
  // Whether this process has ever met the others.
  bool has_met() const { return since_ > 0; }
  // Leaves the job: the others go on without this process, and next() fails with aborted.
  void leave() { life_.reset(); }
  // Whether the store knows that a member has left the job or died. Takes a second at most.
  bool has_lost_one_of(const Generation& generation) const;

  // Whether processes wait for the generation after the one that next() has returned last.
  Result<bool> has_newcomers(const WaitLimit& limit) const;
  // Says that all steps are done: next() returns nothing from now on, on all processes.
  Status finish(const WaitLimit& limit) const;

 private:
  struct Meeting;  // Who has come for a generation, and who is missing.

  Membership(std::shared_ptr<bootstrap::Store> store, const Options& options, std::int64_t number)
      : store_(std::move(store)), options_(options), number_(number) {}
  Status compare_settings(const WaitLimit& limit) const;
  Result<int> open_generation(const WaitLimit& limit) const;
  Result<std::vector<Member>> members_of(int generation, const WaitLimit& limit) const;
  Result<std::vector<Member>> wait_for_members(int generation, const WaitLimit& limit) const;
  Result<Meeting> look(int generation, const std::vector<Member>& last,
                       const WaitLimit& limit) const;
  Status close(int generation, const Meeting& meeting, const WaitLimit& limit) const;
  Status check_own_place(const WaitLimit& limit) const;
  Status ask_store(const WaitLimit& limit,
                   const std::function<Status(const WaitLimit&)>& ask) const;
  Status describe_wait(int generation, const Meeting& meeting, Duration waited) const;
  void forget(int generation) const;

  std::shared_ptr<bootstrap::Store> store_;
  const Options options_;
  const std::int64_t number_;
  std::unique_ptr<bootstrap::StoreWatch> life_;  // Its end marks this process as gone.
  int come_for_ = 0;    // The last generation for which this process has come.
  int generation_ = 0;  // The last one that next() has returned.
  int since_ = 0;       // The first one in which this process has met the others; 0: none yet.
  int met_ = 0;         // The last such generation.
};

}  // namespace stretto::job
