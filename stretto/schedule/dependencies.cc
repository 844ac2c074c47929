// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/dependencies.h"

#include <utility>

#include "stretto/schedule/touch.h"

namespace stretto::schedule {
namespace {

constexpr std::int32_t kNone = -1;

LocationNumbers number_locations(const Schedule& schedule, std::vector<Touch>& touches) {
  std::vector<Location> locations;
  for (const Step& step : schedule.steps) {
    touches.clear();
    append_touches(schedule, step, touches);
    for (const Touch& touch : touches) locations.push_back(touch.location);
  }
  return LocationNumbers(std::move(locations));
}

// Goes through the steps once and remembers, per location, the last step that wrote it and the
// steps that have read it since.
class Walk {
 public:
  explicit Walk(const Schedule& schedule)
      : schedule_(schedule),
        numbers_(number_locations(schedule, touches_)),
        locations_(numbers_.size()),
        last_successor_(schedule.steps.size(), kNone) {}

  // (predecessor, successor), in the order of successors.
  std::vector<std::pair<std::int32_t, std::int32_t>> edges() && {
    for (current_ = 0; current_ < std::ssize(schedule_.steps); ++current_) {
      const Step& step = schedule_.steps[current_];
      if (step.kind == StepKind::sync) {
        add_sync();
        continue;
      }
      const std::size_t edges_before = edges_.size();
      add_hazards(step);
      if (step.kind == StepKind::recv) receives_.push_back(current_);
      const bool is_signal = step.kind == StepKind::send && schedule_.sources(step).empty();
      if (is_signal) {
        for (const std::int32_t receive : receives_) add_edge(receive);
      }
      if (edges_.size() == edges_before) add_edge(last_sync_);
    }
    return std::move(edges_);
  }

 private:
  struct State {
    std::int32_t writer = kNone;
    std::vector<std::int32_t> readers;
  };

  void add_edge(std::int32_t predecessor) {
    if (predecessor == kNone || predecessor == current_) return;
    if (last_successor_[predecessor] == current_) return;
    last_successor_[predecessor] = current_;
    edges_.emplace_back(predecessor, current_);
  }

  void add_hazards(const Step& step) {
    touches_.clear();
    append_touches(schedule_, step, touches_);
    for (const Touch& touch : touches_) {
      State& state = locations_[numbers_.number_of(touch.location)];
      if (!touch.writes) {
        add_edge(state.writer);
        state.readers.push_back(current_);
        continue;
      }
      if (state.readers.empty()) add_edge(state.writer);  // The readers waited for the writer.
      for (const std::int32_t reader : state.readers) add_edge(reader);
      state.readers.clear();
      state.writer = current_;
    }
  }

  // A sync needs no edge from a step for which another step since the last sync waits.
  void add_sync() {
    for (std::int32_t step = last_sync_ + 1; step < current_; ++step) {
      if (last_successor_[step] == kNone) add_edge(step);
    }
    if (last_sync_ + 1 == current_) add_edge(last_sync_);
    last_sync_ = current_;
    locations_.assign(locations_.size(), State());
    receives_.clear();
  }

  const Schedule& schedule_;
  std::vector<Touch> touches_;
  LocationNumbers numbers_;
  std::vector<State> locations_;
  std::vector<std::int32_t> last_successor_;
  std::vector<std::int32_t> receives_;  // Since the last sync.
  std::vector<std::pair<std::int32_t, std::int32_t>> edges_;
  std::int32_t current_ = 0;
  std::int32_t last_sync_ = kNone;
};

}  // namespace

Dependencies dependencies(const Schedule& schedule) {
  const auto edges = Walk(schedule).edges();
  Dependencies result;
  result.successors_begin.resize(schedule.steps.size() + 1);
  result.successors.resize(edges.size());
  result.predecessor_count.resize(schedule.steps.size());
  for (const auto& [predecessor, successor] : edges) {
    ++result.successors_begin[predecessor + 1];
    ++result.predecessor_count[successor];
  }
  for (std::size_t step = 0; step < schedule.steps.size(); ++step) {
    result.successors_begin[step + 1] += result.successors_begin[step];
  }
  std::vector<std::int32_t> next = result.successors_begin;
  for (const auto& [predecessor, successor] : edges) {
    result.successors[next[predecessor]++] = successor;
  }
  return result;
}

}  // namespace stretto::schedule
