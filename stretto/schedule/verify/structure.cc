// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/verify/parts.h"

#include <algorithm>
#include <vector>

#include "stretto/schedule/print.h"

namespace stretto::schedule {
namespace {

bool is_partial(const Place& place) { return place.slot.buffer == Buffer::partial; }

Status check_head(const Schedule& schedule, const Schedule& first, std::size_t rank,
                  std::size_t rank_count) {
  if (std::cmp_not_equal(schedule.rank.value(), rank)) {
    return refusal("schedule {} is rank {}'s", rank, schedule.rank.value());
  }
  if (std::cmp_not_equal(schedule.rank_count, rank_count)) {
    return refusal("rank {} expects {} ranks, and there are {}", rank, schedule.rank_count,
                   rank_count);
  }
  const bool same = schedule.algorithm == first.algorithm &&
                    schedule.collective == first.collective &&
                    schedule.team.empty() == first.team.empty() && schedule.order == first.order &&
                    schedule.chunk_count == first.chunk_count && schedule.root == first.root;
  if (!same) return refusal("rank {} runs another algorithm than rank 0", rank);
  const bool one_team = schedule.team.size() == rank_count;
  if (one_team && schedule.raw_slots != first.raw_slots) {
    return refusal("rank {} has {} raw slots, rank 0 has {}", rank, schedule.raw_slots,
                   first.raw_slots);
  }
  return {};
}

// All ranks of a team name the same team, which includes them, and have equally many syncs.
Status check_team(std::span<const Schedule> schedules, const Schedule& schedule) {
  if (schedule.team.empty()) return {};
  const int rank = schedule.rank.value();
  if (!std::ranges::is_sorted(schedule.team) || !schedule.is_in_team(schedule.rank)) {
    return refusal("the team of rank {} is not sorted, or lacks that rank", rank);
  }
  for (const Rank member : schedule.team) {
    if (member < 0 || member >= schedule.rank_count) {
      return refusal("the team of rank {} has no rank {}", rank, member.value());
    }
    const Schedule& other = schedules[static_cast<std::size_t>(member)];
    if (other.team != schedule.team) {
      return refusal("ranks {} and {} name different teams", rank, member.value());
    }
    if (other.sync_count() != schedule.sync_count()) {
      return refusal("rank {} syncs {} times, rank {} {} times", member.value(), other.sync_count(),
                     rank, schedule.sync_count());
    }
  }
  return {};
}

Status check_shape(const Schedule& first) {
  const int n = first.rank_count;
  if (first.root < 0 || first.root >= n) return refusal("there is no root {}", first.root.value());
  if (reduces(first.collective) == (first.order == Order::none)) {
    return refusal("the stated order does not fit the collective");
  }
  if (first.collective == Collective::point_to_point) return refusal("not a collective");
  const int chunks = first.chunk_count;
  const std::optional<int> required = required_chunks(first.collective, n);
  if (required && chunks != *required) {
    return refusal("{} chunks, but {} are needed", chunks, *required);
  }
  return required || chunks >= 1 ? Status() : refusal("{} chunks", chunks);
}

// Checks one step of one rank. check_steps() adds the rank and the step to the texts.
class StepCheck {
 public:
  StepCheck(std::span<const Schedule> schedules, const Schedule& schedule, const Step& step)
      : schedules_(schedules), schedule_(schedule), step_(step) {}

  Status run() const {
    STRETTO_RETURN_IF_ERROR(check_ranges());
    STRETTO_RETURN_IF_ERROR(check_shape());
    const auto sources = schedule_.sources(step_);
    const auto targets = schedule_.targets(step_);
    for (const Place& place : sources) STRETTO_RETURN_IF_ERROR(check_place(place));
    for (const Place& place : targets) {
      if (place.slot.buffer == Buffer::input)
        return refusal("writes the input, which is read only");
      STRETTO_RETURN_IF_ERROR(check_place(place));
    }
    return check_kinds();
  }

 private:
  Status check_ranges() const {
    const auto size = std::ssize(schedule_.places);
    const bool sound = 0 <= step_.sources_begin && step_.sources_begin <= step_.sources_end &&
                       step_.sources_end <= size && 0 <= step_.targets_begin &&
                       step_.targets_begin <= step_.targets_end && step_.targets_end <= size;
    return sound ? Status() : refusal("has no sound range of places");
  }

  // Checks the numbers of sources and targets, and whether the schedule may have such a step at
  // all.
  Status check_shape() const {
    const std::size_t sources = schedule_.sources(step_).size();
    const std::size_t targets = schedule_.targets(step_).size();
    const bool one_team = schedule_.team.size() == schedules_.size();
    bool fits = false;
    switch (step_.kind) {
      case StepKind::send:
      case StepKind::recv: {
        if (one_team) return refusal("is a message in a schedule whose ranks are one team");
        const bool is_peer = step_.peer >= 0 && step_.peer < schedule_.rank_count;
        if (!is_peer || step_.peer == schedule_.rank) return refusal("names no peer");
        fits = step_.kind == StepKind::send ? sources <= 1 && targets == 0
                                            : sources == 0 && targets <= 1;
        break;
      }
      case StepKind::reduce:
        if (!reduces(schedule_.collective))
          return refusal("reduces, which the collective does not");
        fits = sources >= 1 && targets >= 1;
        break;
      case StepKind::copy:
        fits = sources == 1 && targets >= 1;
        break;
      case StepKind::sync:
        if (schedule_.team.empty()) return refusal("is a sync in a schedule without a team");
        fits = sources == 0 && targets == 0;
        break;
    }
    return fits ? Status() : refusal("has {} sources and {} targets", sources, targets);
  }

  Status check_place(const Place& place) const {
    if (place.rank < 0 || place.rank >= schedule_.rank_count) return refusal("names no rank");
    if (place.rank != schedule_.rank && !schedule_.is_in_team(place.rank)) {
      return refusal("touches rank {}, which is not in its team", place.rank.value());
    }
    const bool is_message = step_.kind == StepKind::send || step_.kind == StepKind::recv;
    if (is_message && place.rank != schedule_.rank) {
      return refusal("is a message of the memory of rank {}", place.rank.value());
    }
    const Slot& slot = place.slot;
    if (slot.chunk < 0 || slot.chunk >= schedule_.chunk_count) {
      return refusal("names chunk {} of {}", slot.chunk.value(), schedule_.chunk_count);
    }
    const auto first = schedule_.sources(step_).empty() ? schedule_.targets(step_).front()
                                                        : schedule_.sources(step_).front();
    if (slot.chunk != first.slot.chunk) return refusal("mixes different chunks");
    const Schedule& owner = schedules_[static_cast<std::size_t>(place.rank)];
    switch (slot.buffer) {
      case Buffer::input:
      case Buffer::output: {
        const bool is_input = slot.buffer == Buffer::input;
        if (slot.index != slot.chunk.value()) return refusal("names a chunk by two numbers");
        if (is_input ? input_holds(schedule_, place.rank, slot.chunk)
                     : output_holds(schedule_, place.rank, slot.chunk))
          return {};
        return refusal("uses {} chunk {} of rank {}, which that rank does not have",
                       is_input ? "input" : "output", slot.index, place.rank.value());
      }
      case Buffer::raw:
        if (slot.index < 0 || slot.index >= owner.raw_slots) {
          return refusal("names raw slot {} of {}", slot.index, owner.raw_slots);
        }
        if (place.rank != schedule_.rank && slot.index >= owner.shared_slots) {
          return refusal("touches raw slot {} of rank {}, which that rank does not share",
                         slot.index, place.rank.value());
        }
        return {};
      case Buffer::partial:
        if (place.rank != schedule_.rank) return refusal("touches a partial slot of another rank");
        if (slot.index >= 0 && slot.index < owner.partial_slots) return {};
        return refusal("names partial slot {} of {}", slot.index, owner.partial_slots);
    }
    return refusal("names no buffer");
  }

  // Values of the operation's dtype and partial values do not mix, except that a reduce takes both.
  Status check_kinds() const {
    const auto sources = schedule_.sources(step_);
    const auto targets = schedule_.targets(step_);
    if (step_.completes && step_.kind != StepKind::reduce) {
      return refusal("completes, which only a reduce can");
    }
    if (step_.takes && step_.kind != StepKind::reduce && step_.kind != StepKind::copy) {
      return refusal("takes, which only a reduce or a copy can");
    }
    for (const Place& target : targets) {
      if (step_.kind == StepKind::copy && is_partial(target) != is_partial(sources.front())) {
        return refusal("copies between a partial slot and another kind");
      }
      if (step_.kind != StepKind::reduce) continue;
      if (step_.completes && is_partial(target)) {
        return refusal("puts a finished result into a partial slot");
      }
      if (!step_.completes && !is_partial(target)) {
        return refusal("puts a partial value, which is not divided yet, outside of partial slots");
      }
    }
    return {};
  }

  std::span<const Schedule> schedules_;
  const Schedule& schedule_;
  const Step& step_;
};

Status check_steps(std::span<const Schedule> schedules, const Schedule& schedule) {
  std::vector<std::int32_t> sent(schedule.rank_count);
  std::vector<std::int32_t> received(schedule.rank_count);
  for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    const Status status = StepCheck(schedules, schedule, step).run();
    if (!status.ok()) {
      return refusal("rank {} step {} {}", schedule.rank.value(), i, status.message());
    }
    if (step.kind != StepKind::send && step.kind != StepKind::recv) continue;
    auto& numbers = step.kind == StepKind::send ? sent : received;
    const std::int32_t expected = numbers[static_cast<std::size_t>(step.peer)]++;
    if (step.message != expected) {
      return refusal("rank {} step {} is message {} where {} is next", schedule.rank.value(), i,
                     step.message, expected);
    }
  }
  return {};
}

}  // namespace

Status check_structure(std::span<const Schedule> schedules) {
  const Schedule& first = schedules.front();
  for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
    STRETTO_RETURN_IF_ERROR(check_head(schedules[rank], first, rank, schedules.size()));
  }
  STRETTO_RETURN_IF_ERROR(check_shape(first));
  for (const Schedule& schedule : schedules) {
    STRETTO_RETURN_IF_ERROR(check_steps(schedules, schedule));
    STRETTO_RETURN_IF_ERROR(check_team(schedules, schedule));
  }
  return {};
}

Status check_messages(const JointSchedule& joint) {
  for (std::size_t index = 0; index < joint.step_count(); ++index) {
    const Step& step = joint.step(index);
    const bool is_send = step.kind == StepKind::send;
    if (!is_send && step.kind != StepKind::recv) continue;
    const std::int32_t partner = joint.partner(index);
    if (partner == JointSchedule::kNone) {
      return refusal("{} has no partner: rank {} never {} it", joint.describe(index),
                     step.peer.value(), is_send ? "receives" : "sends");
    }
    if (!is_send) continue;
    const auto sources = joint.schedule_of(index).sources(step);
    const auto targets = joint.schedule_of(partner).targets(joint.step(partner));
    const char* fault = nullptr;
    if (sources.size() != targets.size()) {
      fault = "only one is a signal";
    } else if (sources.empty()) {
      continue;
    } else if (sources.front().slot.chunk != targets.front().slot.chunk) {
      fault = "different chunks";
    } else if (is_partial(sources.front()) != is_partial(targets.front())) {
      fault = "slots of different kinds";
    }
    if (fault != nullptr) {
      return refusal("{} does not fit {}: {}", joint.describe(index), joint.describe(partner),
                     fault);
    }
  }
  return {};
}

}  // namespace stretto::schedule
