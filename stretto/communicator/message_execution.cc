// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/message_execution.h"

#include <algorithm>
#include <functional>

namespace stretto::communicator {
namespace {

// Enough to keep the link, the reduction and the peer's reduction busy at the same time.
constexpr std::size_t kLanesMax = 4;

}  // namespace

MessageExecution::MessageExecution(std::shared_ptr<const Plan> plan, const Membership& membership,
                                   transport::Transport& transport)
    : plan_(std::move(plan)), membership_(&membership), transport_(&transport), local_(*plan_) {
  const std::size_t steps = plan_->schedule().steps.size();
  lanes_.resize(std::min<std::size_t>(kLanesMax, plan_->segment_count()));
  scratch_.resize(lanes_.size() * plan_->scratch_bytes());
  ready_.reserve(lanes_.size() * steps);
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i].waits.resize(steps);
    lanes_[i].requests.resize(steps);
    lanes_[i].scratch = scratch_.data() + i * plan_->scratch_bytes();
  }
}

void MessageExecution::start(const Call& call) {
  call_ = call;
  // Where each message has a count of its own, its receive compares it.
  status_ = counts_by_message(call.operation)
                ? Status()
                : transport_->find_conflict(membership_->group, call.sequence, call.operation);
  ready_.clear();
  next_segment_ = 0;
  // Alone in its group, a rank may have nothing to do.
  lanes_left_ = plan_->schedule().steps.empty() ? 0 : lanes_.size();
  if (ended()) return;
  for (std::uint32_t lane = 0; lane < lanes_.size(); ++lane) start_segment(lane);
}

void MessageExecution::start_segment(std::uint32_t index) {
  Lane& lane = lanes_[index];
  if (next_segment_ == plan_->segment_count()) {
    --lanes_left_;
    return;
  }
  lane.segment = next_segment_++;
  const auto& waits = plan_->dependencies().predecessor_count;
  std::copy(waits.begin(), waits.end(), lane.waits.begin());
  lane.steps_left = waits.size();
  // Last first, since ready_ is a stack: the list's order is the order that the algorithm means.
  for (auto step = static_cast<std::int32_t>(waits.size()) - 1; step >= 0; --step) {
    if (waits[static_cast<std::size_t>(step)] == 0) ready_.push_back({index, step});
  }
}

bool MessageExecution::advance() {
  bool moved = false;
  while (!ready_.empty() && status_.ok()) {
    const Ready ready = ready_.back();
    ready_.pop_back();
    run_step(ready);
    moved = true;
  }
  return moved;
}

void MessageExecution::run_step(Ready ready) {
  Lane& lane = lanes_[ready.lane];
  const schedule::Step& step = plan_->schedule().steps[static_cast<std::size_t>(ready.step)];
  if (step.kind == schedule::StepKind::send || step.kind == schedule::StepKind::recv) {
    post(ready.lane, ready.step);
    return;
  }
  // Only send() reads through an address made from `input`, so nothing of the caller's is written.
  const auto base_of = [&](const schedule::Place& place) -> std::byte* {
    switch (place.slot.buffer) {
      case schedule::Buffer::input:
        return const_cast<std::byte*>(call_.input);
      case schedule::Buffer::output:
        return call_.output;
      default:
        return lane.scratch;
    }
  };
  Status status = local_.run(step, lane.segment, base_of);
  if (!status.ok()) return fail(status);
  step_done(ready.lane, ready.step);
}

void MessageExecution::post(std::uint32_t lane_index, std::int32_t index) {
  Lane& lane = lanes_[lane_index];
  const schedule::Schedule& steps = plan_->schedule();
  const schedule::Step& step = steps.steps[static_cast<std::size_t>(index)];
  transport::Request& request = lane.requests[static_cast<std::size_t>(index)];
  request.peer = membership_->job_rank(step.peer);
  request.key = {.group = membership_->group,
                 .sequence = call_.sequence,
                 .segment = lane.segment,
                 .message = static_cast<std::uint32_t>(step.message)};
  request.operation = call_.operation;
  request.owner = this;
  request.outgoing = {};
  request.incoming = {};
  const bool sends = step.kind == schedule::StepKind::send;
  const auto places = sends ? steps.sources(step) : steps.targets(step);
  if (!places.empty()) {  // A message without a slot is a signal.
    const schedule::Place& place = places.front();
    const Plan::Range range = plan_->range(place, lane.segment);
    // Chunks may be of different lengths; where this one has ended, both sides know it. The first
    // segment's message goes even if it is empty: it finds out ranks that disagree.
    if (range.count == 0 && lane.segment > 0) return step_done(lane_index, index);
    if (counts_by_message(call_.operation)) {
      request.operation.count = plan_->chunk_elements(place.slot.chunk);
    }
    const schedule::Buffer buffer = place.slot.buffer;
    std::byte* scratch = lane.scratch + range.offset_bytes;
    if (sends) {
      const std::byte* from = buffer == schedule::Buffer::input ? call_.input + range.offset_bytes
                              : buffer == schedule::Buffer::output
                                  ? call_.output + range.offset_bytes
                                  : scratch;
      request.outgoing = {from, range.bytes()};
    } else {
      std::byte* to =
          buffer == schedule::Buffer::output ? call_.output + range.offset_bytes : scratch;
      request.incoming = {to, range.bytes()};
    }
  }
  if (sends) {
    transport_->send(request);
  } else {
    transport_->recv(request);
  }
}

void MessageExecution::step_done(std::uint32_t index, std::int32_t step) {
  Lane& lane = lanes_[index];
  const schedule::Dependencies& dependencies = plan_->dependencies();
  const auto at = static_cast<std::size_t>(step);
  const auto begin = static_cast<std::size_t>(dependencies.successors_begin[at]);
  const auto end = static_cast<std::size_t>(dependencies.successors_begin[at + 1]);
  for (std::size_t i = begin; i < end; ++i) {
    const std::int32_t next = dependencies.successors[i];
    if (--lane.waits[static_cast<std::size_t>(next)] == 0) ready_.push_back({index, next});
  }
  if (--lane.steps_left == 0) start_segment(index);
}

void MessageExecution::request_done(transport::Request& request) {
  if (!status_.ok()) return;
  if (!request.status.ok()) {
    status_ = request.status;
    return;
  }
  for (std::uint32_t index = 0; index < lanes_.size(); ++index) {
    const auto& requests = lanes_[index].requests;
    const std::less<const transport::Request*> before;
    if (before(&request, requests.data())) continue;
    if (!before(&request, requests.data() + requests.size())) continue;
    return step_done(index, static_cast<std::int32_t>(&request - requests.data()));
  }
}

void MessageExecution::fail(const Status& status) {
  if (status_.ok()) status_ = status;
}

std::vector<Rank> MessageExecution::waiting_for() const {
  std::vector<Rank> ranks;
  for (const Lane& lane : lanes_) {
    for (std::size_t i = 0; i < lane.requests.size(); ++i) {
      const schedule::Step& step = plan_->schedule().steps[i];
      if (lane.requests[i].done || step.kind != schedule::StepKind::recv) continue;
      if (std::find(ranks.begin(), ranks.end(), step.peer) == ranks.end()) {
        ranks.push_back(step.peer);
      }
    }
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace stretto::communicator
