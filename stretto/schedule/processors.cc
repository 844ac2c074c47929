// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/processors.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "stretto/base/check.h"

namespace stretto::schedule {
namespace {

// Appends the steps of `from` from step `begin` up to its next sync. Returns the index of that
// sync.
std::size_t append_until_sync(const Schedule& from, std::size_t begin, Schedule& to) {
  std::size_t i = begin;
  for (; i < from.steps.size() && from.steps[i].kind != StepKind::sync; ++i) {
    Step step = from.steps[i];
    const auto shift = static_cast<std::int32_t>(to.places.size()) - step.sources_begin;
    STRETTO_CHECK(step.targets_begin == step.sources_end, "places lie in the order of their steps");
    to.places.insert(to.places.end(), from.places.begin() + step.sources_begin,
                     from.places.begin() + step.targets_end);
    step.sources_begin += shift;
    step.sources_end += shift;
    step.targets_begin += shift;
    step.targets_end += shift;
    to.steps.push_back(step);
  }
  return i;
}

}  // namespace

Schedule build_for_processors(const Algorithm& algorithm, const Shape& shape,
                              std::span<const std::int32_t> processors) {
  const auto own = static_cast<std::size_t>(shape.rank.value());
  const bool is_first =
      std::ranges::find(processors, processors[own]) == processors.begin() + shape.rank.value();
  std::vector<Schedule> parts;
  for (std::size_t rank = own; is_first && rank < processors.size(); ++rank) {
    if (processors[rank] != processors[own]) continue;
    Shape its = shape;
    its.rank = static_cast<std::int32_t>(rank);
    parts.push_back(algorithm.build(its));
  }
  Schedule merged = algorithm.build(shape);
  STRETTO_CHECK(merged.raw_slots == 0 && merged.partial_slots == 0, "scratch slots are a rank's");
  STRETTO_CHECK(merged.steps.empty() || merged.steps.front().kind == StepKind::sync,
                "what ranks have is there when they have met");
  const std::size_t syncs = merged.sync_count();
  merged.steps.clear();
  merged.places.clear();
  std::vector<std::size_t> at(parts.size(), 0);
  for (std::size_t sync = 0; sync <= syncs; ++sync) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      at[i] = append_until_sync(parts[i], at[i], merged) + 1;
    }
    if (sync < syncs) merged.steps.push_back({.kind = StepKind::sync});
  }
  return merged;
}

}  // namespace stretto::schedule
