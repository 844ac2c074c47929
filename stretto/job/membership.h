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
  // By rank: who has met the others first is rank 0.
  std::vector<Member> members = {};
  // Where they meet; nobody else uses it. Who waits there for what another one writes gets
  // peer_lost when a member has left the job.
  std::shared_ptr<bootstrap::Store> store = nullptr;
};

// "3:1:0 4:2:-1": number, first generation and launcher rank of each member.
std::string format_members(const std::vector<Member>& members);
// The text may come from anyone who can write to the store. Fails with protocol.
Result<std::vector<Member>> parse_members(std::string_view text);

// The part of a process in a job whose processes come and go: it enters, meets with the others for
// one generation after the other, and leaves when this is destroyed or the process ends. Needs a
// store that executes wills, and lasts for as long as the job. Used by one thread.
class Membership {
 public:
  // The part of a launcher's store in which processes meet, and what is there once one has entered.
  static constexpr std::string_view kStorePrefix = "elastic/";
  static constexpr std::string_view kEntered = "entered";

  struct Options {
    int launcher_rank = -1;
    // The first generation waits for so many processes. Empty: only who knows how many the launcher
    // starts can say that it is complete.
    std::optional<int> first_size = std::nullopt;
    int min_size = 1;  // Every other one waits for so many.
    // What must be the same in all processes, for people: "backend stretto, ...".
    std::string settings = {};
  };
  // Fails with mismatch if the settings are not those of the first who has entered.
  static Result<std::unique_ptr<Membership>> enter(std::shared_ptr<bootstrap::Store> store,
                                                   const Options& options, const WaitLimit& limit);

  // Waits for the next generation: until all members of the last one that live have called this,
  // and enough processes. Those that come meanwhile belong to it, too. Nothing if the job has
  // finished. Fails with timeout, naming who has not come; with peer_lost or system if the store is
  // gone; with aborted if it has lost the connection to this process, which the others therefore
  // take for dead, or after leave(). May be called again.
  Result<std::optional<Generation>> next(const WaitLimit& limit);
  // All members have met.
  void note_meeting(const Generation& generation);
  // Whether this process has ever met the others.
  bool has_met() const { return since_ > 0; }
  // The others go on without this process: next() fails with aborted.
  void leave() { life_.reset(); }
  // Whether the store knows that a member has left the job or died. Takes a second at most.
  bool has_lost_one_of(const Generation& generation) const;

  // Whether processes wait for the generation after the last that has met.
  Result<bool> has_newcomers(const WaitLimit& limit) const;
  // Nobody needs to come any more: all steps are done.
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
  std::unique_ptr<bootstrap::StoreWatch> life_;  // With it this process is gone.
  int come_for_ = 0;    // The last generation for which this process has come.
  int generation_ = 0;  // The last one that next() has returned.
  int since_ = 0;       // The first one in which this process has met the others; 0: none yet.
  int met_ = 0;         // The last one.
};

}  // namespace stretto::job
