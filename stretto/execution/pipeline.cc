// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/execution/pipeline.h"

#include <algorithm>

namespace stretto::execution {

PipelineDesign connect(PipelineDesign design) {
  auto& stages = design.stages;
  // Stages on one stream are in order anyway.
  const auto add = [&](int stage, PipelineDesign::Wait wait) {
    auto& at = stages[static_cast<std::size_t>(stage)];
    const auto& before = stages[static_cast<std::size_t>(wait.stage)];
    const bool is_known = std::ranges::any_of(at.waits, [&](const auto& known) {
      return known.stage == wait.stage && known.of_last_lap == wait.of_last_lap;
    });
    if (at.stream != before.stream && !is_known) at.waits.push_back(wait);
  };
  for (int stage = 1; stage < static_cast<int>(stages.size()); ++stage) add(stage, {stage - 1});
  for (int buffer = 0; buffer < static_cast<int>(design.staging.size()); ++buffer) {
    const auto uses = [&](const auto& stage) {
      return std::ranges::find(stage.uses, buffer) != stage.uses.end();
    };
    const auto first = std::ranges::find_if(stages, uses) - stages.begin();
    const auto last = std::ranges::find_if(stages.rbegin(), stages.rend(), uses).base() - 1;
    add(static_cast<int>(first), {static_cast<int>(last - stages.begin()), true});
  }
  return design;
}

std::span<const PipelineDesign> pipelines() {
  static const std::vector<PipelineDesign> all{
      connect({.name = "staged",
               .streams = {"out", "exchange", "back"},
               .staging = {"pinned"},
               .stages = {{"copy_out", "device to pinned memory of the host", 0, {0}},
                          {"all_reduce", "inside the host and between hosts", 1, {0}},
                          {"copy_back", "pinned memory to device", 2, {0}}}}),
      // Apache SINGA's fused all-reduce: one buffer that is filled, one that is received into.
      connect({.name = "singa",
               .streams = {"c1", "s", "c2"},
               .staging = {"send", "receive"},
               .stages = {{"fill", "gradients to the fuse buffer, cast if asked", 0, {0}},
                          {"all_reduce", "fuse buffer to receive buffer", 1, {0, 1}},
                          {"copy_back", "receive buffer to gradients, cast back", 2, {1}}}}),
      // Fairring's all-reduce in two levels, with rails between hosts.
      connect({.name = "fairring",
               .streams = {"reduce_scatter", "collect", "add", "diffuse", "all_gather"},
               .staging = {"staging"},
               .stages = {{"reduce_scatter", "among the devices of the host, in place", 0, {}},
                          {"collect", "shards of the other hosts to staging", 1, {0}},
                          {"add", "staging to the shard", 2, {0}},
                          {"diffuse", "the reduced shard to the other hosts", 3, {}},
                          {"all_gather", "among the devices of the host, in place", 4, {}}}}),
  };
  return all;
}

Pipeline::Pipeline(const PipelineDesign& design, int slots, Begin begin)
    : design_(&design),
      slots_(static_cast<std::uint64_t>(slots)),
      begin_(std::move(begin)),
      begun_(design.stages.size()) {}

Result<std::unique_ptr<Pipeline>> Pipeline::create(const PipelineDesign& design,
                                                   const std::vector<Stream*>& streams, int slots,
                                                   Begin begin) {
  std::unique_ptr<Pipeline> pipeline(new Pipeline(design, slots, std::move(begin)));
  for (Stream* stream : streams) pipeline->lanes_.push_back({.stream = stream, .stages = {}});
  for (std::size_t stage = 0; stage < design.stages.size(); ++stage) {
    Lane& lane = pipeline->lanes_[static_cast<std::size_t>(design.stages[stage].stream)];
    lane.stages.push_back(static_cast<int>(stage));
    for (int slot = 0; slot < slots; ++slot) {
      STRETTO_ASSIGN_OR_RETURN(pipeline->events_.emplace_back(), lane.stream->make_event());
    }
  }
  return pipeline;
}

void Pipeline::push(StreamEvent* ready) {
  ready_.push_back(ready);
  ++pushed_;
}

StreamEvent& Pipeline::event(int stage, std::uint64_t slice) {
  return *events_[static_cast<std::size_t>(stage) * slots_ + slice % slots_];
}

bool Pipeline::advance() {
  bool moved = false;
  for (bool again = true; again;) {
    again = false;
    for (Lane& lane : lanes_) {
      while (status_.ok() && begin_next(lane)) again = moved = true;
    }
  }
  const int last = static_cast<int>(design_->stages.size()) - 1;
  while (status_.ok() && ended_ < begun_.back() && event(last, ended_).is_done()) {
    moved = true;
    // Events of a stream that has failed are done, too.
    for (const Lane& lane : lanes_) {
      if (status_.ok()) status_ = lane.stream->status();
    }
    if (status_.ok()) ++ended_;
  }
  return moved;
}

bool Pipeline::may_begin(Lane& lane, int stage) {
  const std::uint64_t slice = lane.slice;
  if (slice == pushed_) return false;
  // All streams that wait for an event have been told so before it is recorded anew.
  if (stage == 0 && begun_.back() + slots_ <= slice) return false;
  if (stage == 0 && ready_.front() != nullptr && !lane.stream->wait(*ready_.front())) return false;
  if (stage > 0 && begun_[static_cast<std::size_t>(stage) - 1] <= slice) return false;
  const auto& waits = design_->stages[static_cast<std::size_t>(stage)].waits;
  return std::ranges::all_of(waits, [&](const PipelineDesign::Wait& wait) {
    if (wait.of_last_lap && slice < slots_) return true;
    return lane.stream->wait(event(wait.stage, slice));
  });
}

bool Pipeline::begin_next(Lane& lane) {
  const int stage = lane.stages[lane.next];
  if (!may_begin(lane, stage)) return false;
  status_ =
      begin_({.stage = stage, .slice = lane.slice, .slot = static_cast<int>(lane.slice % slots_)});
  if (!status_.ok()) return false;
  lane.stream->record(event(stage, lane.slice));
  ++begun_[static_cast<std::size_t>(stage)];
  if (stage == 0) ready_.pop_front();
  lane.next = (lane.next + 1) % lane.stages.size();
  if (lane.next == 0) ++lane.slice;
  return true;
}

bool Pipeline::is_idle() const {
  return std::ranges::all_of(lanes_, [](const Lane& lane) { return lane.stream->is_done(); });
}

}  // namespace stretto::execution
