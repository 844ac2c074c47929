// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/builder.h"

#include <algorithm>
#include <utility>

#include "stretto/base/check.h"
#include "stretto/schedule/host_layout.h"

namespace stretto::schedule {

Rank neighbour(const Shape& shape, int distance) {
  const int place = (shape.rank.value() + distance) % shape.rank_count;
  return place < 0 ? place + shape.rank_count : place;
}

namespace {

std::vector<Rank> team_of(const Shape& shape, Access access) {
  if (access == Access::both) return HostLayout(shape).team_of(shape.rank);
  std::vector<Rank> team;
  for (std::int32_t rank = 0; access == Access::mapped && rank < shape.rank_count; ++rank) {
    team.push_back(rank);
  }
  return team;
}

}  // namespace

ScheduleBuilder::ScheduleBuilder(const Shape& shape, const Options& options) {
  STRETTO_CHECK(shape.rank_count >= 1, "{} ranks", shape.rank_count);
  STRETTO_CHECK(shape.rank >= 0 && shape.rank < shape.rank_count, "rank {} of {}",
                shape.rank.value(), shape.rank_count);
  STRETTO_CHECK(shape.root >= 0 && shape.root < shape.rank_count, "root {} of {}",
                shape.root.value(), shape.rank_count);
  schedule_.algorithm = options.algorithm;
  schedule_.collective = options.collective;
  schedule_.team = team_of(shape, options.access);
  schedule_.order = options.order;
  schedule_.rank = shape.rank;
  schedule_.rank_count = shape.rank_count;
  schedule_.chunk_count = options.chunk_count;
  schedule_.root = shape.root;
  sent_.resize(shape.rank_count);
  received_.resize(shape.rank_count);
}

void ScheduleBuilder::send(Slot slot, Rank to) { add_send(to, {own(slot)}); }
void ScheduleBuilder::recv(Rank from, Slot slot) { add_recv(from, {own(slot)}); }
void ScheduleBuilder::send_signal(Rank to) { add_send(to, {}); }
void ScheduleBuilder::recv_signal(Rank from) { add_recv(from, {}); }

ScheduleBuilder::Added ScheduleBuilder::reduce(const std::vector<Slot>& sources,
                                               const std::vector<Slot>& targets) {
  return reduce(own(sources), own(targets));
}

ScheduleBuilder::Added ScheduleBuilder::reduce(const std::vector<Place>& sources,
                                               const std::vector<Place>& targets) {
  return Added(add(StepKind::reduce, sources, targets));
}

void ScheduleBuilder::copy(Slot source, Slot target) { copy(own(source), target); }
ScheduleBuilder::Added ScheduleBuilder::copy(Place source, Slot target) {
  return Added(add(StepKind::copy, {source}, {own(target)}));
}

void ScheduleBuilder::copy(Slot source, Place target) {
  add(StepKind::copy, {own(source)}, {target});
}

void ScheduleBuilder::sync() { add(StepKind::sync, {}, {}); }

Schedule ScheduleBuilder::build() && {
  const bool one_team = std::cmp_equal(schedule_.team.size(), schedule_.rank_count);
  if (one_team) schedule_.shared_slots = schedule_.raw_slots;
  return std::move(schedule_);
}

std::vector<Place> ScheduleBuilder::own(const std::vector<Slot>& slots) const {
  std::vector<Place> places;
  places.reserve(slots.size());
  for (const Slot& slot : slots) places.push_back(own(slot));
  return places;
}

Step& ScheduleBuilder::add(StepKind kind, const std::vector<Place>& sources,
                           const std::vector<Place>& targets) {
  Step step{.kind = kind};
  step.sources_begin = static_cast<std::int32_t>(schedule_.places.size());
  for (const Place& place : sources) add_place(place);
  step.sources_end = static_cast<std::int32_t>(schedule_.places.size());
  step.targets_begin = step.sources_end;
  for (const Place& place : targets) add_place(place);
  step.targets_end = static_cast<std::int32_t>(schedule_.places.size());
  return schedule_.steps.emplace_back(step);
}

void ScheduleBuilder::add_send(Rank to, const std::vector<Place>& sources) {
  Step& step = add(StepKind::send, sources, {});
  step.peer = to;
  step.message = sent_.at(static_cast<std::size_t>(to))++;
}

void ScheduleBuilder::add_recv(Rank from, const std::vector<Place>& targets) {
  Step& step = add(StepKind::recv, {}, targets);
  step.peer = from;
  step.message = received_.at(static_cast<std::size_t>(from))++;
}

void ScheduleBuilder::add_place(const Place& place) {
  // Slots of other ranks count as well: where all ranks are one team, all have equally many slots.
  const std::int32_t needed = place.slot.index + 1;
  if (place.slot.buffer == Buffer::raw) {
    schedule_.raw_slots = std::max(schedule_.raw_slots, needed);
  } else if (place.slot.buffer == Buffer::partial) {
    schedule_.partial_slots = std::max(schedule_.partial_slots, needed);
  }
  schedule_.places.push_back(place);
}

}  // namespace stretto::schedule
