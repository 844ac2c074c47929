// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/joint.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include <fmt/core.h>

#include "stretto/base/rank_vector.h"
#include "stretto/schedule/print.h"

namespace stretto::schedule {
namespace {

// State of execute().
class Runner {
 public:
  explicit Runner(const JointSchedule& joint)
      : joint_(joint),
        pending_(joint.step_count()),
        started_(joint.step_count()),
        teams_(joint.schedules().size()) {
    execution_.level.resize(joint.step_count());
    for (std::size_t step = 0; step < joint.step_count(); ++step) {
      pending_[step] = joint.predecessor_count(step);
      if (pending_[step] == 0) ready_.push_back(static_cast<std::int32_t>(step));
    }
  }

  JointRun run(const std::function<std::size_t(std::size_t ready)>& pick) && {
    // Without `pick` the order is first in, first out, so that it looks like a run, not like a
    // search.
    for (std::size_t next = 0; next < ready_.size(); ++next) {
      if (pick) std::swap(ready_[next], ready_[next + pick(ready_.size() - next)]);
      start(ready_[next]);
    }
    execution_.complete = execution_.order.size() == joint_.step_count();
    return std::move(execution_);
  }

 private:
  void start(std::int32_t step) {
    started_[step] = true;
    const StepKind kind = joint_.step(step).kind;
    if (kind == StepKind::send || kind == StepKind::recv) {
      const std::int32_t partner = joint_.partner(step);
      if (partner == JointSchedule::kNone || !started_[partner]) return;
      end_together(kind == StepKind::send ? std::vector{step, partner}
                                          : std::vector{partner, step});
    } else if (kind == StepKind::sync) {
      const auto& team = joint_.schedule_of(step).team;
      auto& arrivals = teams_[team.front()];
      arrivals.push_back(step);
      if (arrivals.size() < team.size()) return;
      end_together(std::exchange(arrivals, {}));
    } else {
      end(step, execution_.level[step]);
    }
  }

  // Ends the steps of a message or of a sync. Each of them is then one level above the highest of
  // them.
  void end_together(const std::vector<std::int32_t>& steps) {
    std::int32_t level = 0;
    for (const std::int32_t step : steps) level = std::max(level, execution_.level[step]);
    for (const std::int32_t step : steps) {
      execution_.level[step] = level;
      end(step, level + 1);
    }
  }

  void end(std::int32_t step, std::int32_t level_after) {
    execution_.order.push_back(step);
    for (const std::int32_t successor : joint_.successors_of(step)) {
      std::int32_t& level = execution_.level[successor];
      level = std::max(level, level_after);
      if (--pending_[successor] == 0) ready_.push_back(successor);
    }
  }

  const JointSchedule& joint_;
  std::vector<std::int32_t> pending_;
  std::vector<bool> started_;
  std::vector<std::int32_t> ready_;
  // Indexed by the first rank of a team: the syncs that its ranks have reached and that have not
  // ended.
  RankVector<std::vector<std::int32_t>> teams_;
  JointRun execution_;
};

// An unfinished step that the unfinished step `step` waits for: a predecessor, or else its partner.
// kNone for a sync without such predecessors, which waits for other ranks rather than for one step.
std::int32_t blocker_of(const JointSchedule& joint, const std::vector<bool>& ended,
                        std::int32_t step) {
  for (std::int32_t earlier = joint.first_step(joint.rank_of(step)); earlier < step; ++earlier) {
    if (ended[earlier]) continue;
    if (std::ranges::count(joint.successors_of(earlier), step) > 0) return earlier;
  }
  return joint.partner(step);
}

}  // namespace

JointSchedule::JointSchedule(std::span<const Schedule> schedules) : schedules_(schedules) {
  first_step_.push_back(0);
  for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
    const auto count = static_cast<std::int32_t>(schedules[rank].steps.size());
    first_step_.push_back(first_step_.back() + count);
    rank_of_.insert(rank_of_.end(), count, static_cast<std::int32_t>(rank));
    dependencies_.push_back(dependencies(schedules[rank]));
  }
  match_messages();
}

void JointSchedule::match_messages() {
  partner_.assign(step_count(), kNone);
  using Message = std::tuple<Rank, Rank, std::int32_t, std::int32_t>;  // from, to, number, step.
  std::vector<Message> sends;
  std::vector<Message> receives;
  for (std::size_t index = 0; index < step_count(); ++index) {
    const Step& message = step(index);
    const Rank self = static_cast<std::int32_t>(rank_of(index));
    const auto number = static_cast<std::int32_t>(index);
    if (message.kind == StepKind::send) {
      sends.emplace_back(self, message.peer, message.message, number);
    } else if (message.kind == StepKind::recv) {
      receives.emplace_back(message.peer, self, message.message, number);
    }
  }
  std::ranges::sort(sends);
  std::ranges::sort(receives);
  auto key = [](const Message& m) { return std::tie(get<0>(m), get<1>(m), get<2>(m)); };
  for (std::size_t s = 0, r = 0; s < sends.size() && r < receives.size();) {
    if (key(sends[s]) < key(receives[r])) {
      ++s;
    } else if (key(receives[r]) < key(sends[s])) {
      ++r;
    } else {
      const std::int32_t send = get<3>(sends[s++]);
      const std::int32_t receive = get<3>(receives[r++]);
      partner_[send] = receive;
      partner_[receive] = send;
    }
  }
}

std::vector<std::int32_t> JointSchedule::successors_of(std::size_t step) const {
  const std::int32_t first = first_step_[rank_of(step)];
  const auto own = dependencies_[rank_of(step)].successors_of(step - first);
  std::vector<std::int32_t> successors(own.begin(), own.end());
  for (std::int32_t& successor : successors) successor += first;
  return successors;
}

std::string JointSchedule::describe(std::size_t step) const {
  return fmt::format("rank {} step {} ({})", rank_of(step), step - first_step_[rank_of(step)],
                     print(schedule_of(step), this->step(step)));
}

JointRun execute(const JointSchedule& joint,
                 const std::function<std::size_t(std::size_t ready)>& pick) {
  return Runner(joint).run(pick);
}

std::string explain_deadlock(const JointSchedule& joint, const JointRun& execution) {
  std::vector<bool> ended(joint.step_count());
  for (const std::int32_t step : execution.order) ended[step] = true;
  std::vector<std::int32_t> path;
  std::int32_t step = static_cast<std::int32_t>(std::ranges::find(ended, false) - ended.begin());
  while (step != JointSchedule::kNone && std::ranges::count(path, step) == 0) {
    path.push_back(step);
    step = blocker_of(joint, ended, step);
  }
  if (step != JointSchedule::kNone) {
    path.erase(path.begin(), std::ranges::find(path, step));  // Steps before the cycle.
    path.push_back(step);
  }
  constexpr std::size_t kStepsShown = 9;
  std::string text = joint.describe(path.front());
  for (std::size_t i = 1; i < std::min(path.size(), kStepsShown); ++i) {
    text += fmt::format("{} waits for {}", i == 1 ? "" : ", which", joint.describe(path[i]));
  }
  if (path.size() > kStepsShown) text += ", and so on";
  return text;
}

}  // namespace stretto::schedule
