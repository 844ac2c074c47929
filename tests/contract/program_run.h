// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "stretto/base/rank_vector.h"
#include "stretto/communicator/communicator.h"
#include "tests/support/problem.h"

namespace stretto::testing {

// One line of a random program. Any numbers make a valid step, so that rapidcheck can shorten a
// program.
struct ProgramStep {
  enum class Kind {
    collective,
    message,
    any_source,
    batch,
    list,
    make_group,
    drop_group,
    settle,
  };

  Kind kind = Kind::collective;
  unsigned group = 0;
  unsigned what = 0;     // Selects collective, dtype and op; for a message, its dtype and tag.
  unsigned count = 0;    // Elements.
  unsigned rank = 0;     // The root, the sender, or the rank that receives from all.
  unsigned sleeper = 0;  // The rank of the job that does nothing until the next step; or nobody.
  bool flag = false;     // In place; equal shares; made by split().
};
std::ostream& operator<<(std::ostream& out, const ProgramStep& step);

// Runs a program on ranks of this process, all of them from this one thread, with many operations
// in flight.
class ProgramRun {
 public:
  explicit ProgramRun(std::vector<std::unique_ptr<Communicator>> ranks);
  ~ProgramRun();
  ProgramRun(const ProgramRun&) = delete;
  ProgramRun& operator=(const ProgramRun&) = delete;

  // Returns the first failure, or nothing.
  std::string run(const std::vector<ProgramStep>& program);

 private:
  // An operation on the ranks of a group, from its start until its result has been checked.
  struct InFlight {
    std::string name;
    std::vector<std::shared_ptr<Work>> works;
    std::function<std::string()> failure;
  };
  struct Team {
    std::vector<int> members;                          // Ranks of the job.
    std::vector<std::unique_ptr<Communicator>> comms;  // Per member.
    int size() const { return static_cast<int>(members.size()); }
  };
  using Start = std::function<Work(Communicator&, int rank)>;

  void add(const ProgramStep& step);
  void add_collective(const ProgramStep& step, Team& team);
  void add_message(const ProgramStep& step, Team& team);
  void add_any_source(const ProgramStep& step, Team& team);
  void add_batch(const ProgramStep& step, Team& team);
  void add_list(const ProgramStep& step, Team& team);
  void make_team(const ProgramStep& step, Team& parent);
  // Queues `start`, to be called for `member` when its rank gets to it.
  std::shared_ptr<Work> later(Team& team, int member, const Start& start);
  void on_all_members(InFlight& entry, Team& team, const Start& start);
  void wake_all_but(unsigned sleeper);
  std::string settle();

  std::vector<std::unique_ptr<Team>> teams_;             // The first is everybody.
  RankVector<std::deque<std::function<void()>>> to_do_;  // Per rank of the job.
  std::vector<InFlight> in_flight_;
  int any_source_tags_ = 100;
};

}  // namespace stretto::testing
