// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/execution/message_execution.h"

#include <algorithm>
#include <utility>

namespace stretto::execution {
namespace {

// A cookie is the lane and the step.
constexpr std::uint64_t cookie_of(std::uint32_t lane, std::int32_t step) {
  return std::uint64_t{lane} << 32 | static_cast<std::uint32_t>(step);
}

}  // namespace

MessageExecution::MessageExecution(std::shared_ptr<const Plan> plan, const Membership& membership,
                                   transport::Endpoint& transport, TeamLanes* team)
    : plan_(std::move(plan)),
      membership_(&membership),
      transport_(&transport),
      team_(plan_->schedule().sync_count() > 0 ? team : nullptr),
      local_(*plan_) {
  const std::size_t steps = plan_->schedule().steps.size();
  lanes_.resize(std::min<std::size_t>(plan_->lanes(), plan_->segment_count()));
  // Not filled with zeros, since it may be tens of megabytes: slots are written before they are
  // read.
  const std::size_t scratch_bytes = lanes_.size() * plan_->private_bytes();
  scratch_ = std::make_unique_for_overwrite<std::byte[]>(scratch_bytes);
  ready_.reserve(lanes_.size() * steps);
  completions_.reserve(lanes_.size() * steps);
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i].waits.resize(steps);
    lanes_[i].messages.resize(steps);
    lanes_[i].scratch = scratch_.get() + i * plan_->private_bytes();
  }
  constexpr std::size_t kStepBytes =
      sizeof(std::int32_t) + sizeof(Lane::Message) + sizeof(Ready) + sizeof(transport::Completion);
  idle_bytes_ = scratch_bytes + lanes_.size() * steps * kStepBytes + local_.bytes();
}

void MessageExecution::start(const Call& call, Turn& /*turn*/) {
  call_ = call;
  // Where each message has a count of its own, its receive compares it.
  status_ = counts_by_message(call.operation)
                ? Status()
                : transport_->find_conflict(membership_->group, call.sequence, call.operation);
  ready_.clear();
  next_segment_ = 0;
  // Alone in its group, a rank may have nothing to do.
  segments_left_ = plan_->schedule().steps.empty() ? 0 : plan_->segment_count();
  for (Lane& lane : lanes_) {
    lane.steps_left = 0;
    lane.sync = kNone;
  }
  if (team_ != nullptr) first_turn_ = team_->take_turns(segments_left_);
  if (!ended()) start_segments();
}

// Finds a lane for the next segment.
std::optional<std::uint32_t> MessageExecution::free_lane() const {
  if (team_ != nullptr && !team_->may_begin(turn_of(next_segment_))) return std::nullopt;
  const auto found = std::ranges::find(lanes_, std::size_t{0}, &Lane::steps_left);
  if (found == lanes_.end()) return std::nullopt;
  return static_cast<std::uint32_t>(found - lanes_.begin());
}

void MessageExecution::start_segments() {
  while (next_segment_ < plan_->segment_count()) {
    const std::optional<std::uint32_t> lane = free_lane();
    if (!lane) return;
    start_segment(*lane);
  }
}

void MessageExecution::start_segment(std::uint32_t index) {
  Lane& lane = lanes_[index];
  lane.segment = next_segment_++;
  if (team_ != nullptr) team_->begin(turn_of(lane.segment), call_);
  const auto& waits = plan_->dependencies().predecessor_count;
  std::copy(waits.begin(), waits.end(), lane.waits.begin());
  lane.steps_left = waits.size();
  // Last first, since ready_ is a stack: steps then run in the order of the list, as algorithms
  // mean.
  for (auto step = static_cast<std::int32_t>(waits.size()) - 1; step >= 0; --step) {
    if (waits[static_cast<std::size_t>(step)] == 0) ready_.push_back({index, step});
  }
}

bool MessageExecution::advance(Turn& turn) {
  bool moved = false;
  while (run_ready(turn) || take_completions()) moved = true;
  if (team_ == nullptr) return moved;
  // A lane may have become free in another execution.
  start_segments();
  while (run_ready(turn) || take_completions() || end_syncs()) moved = true;
  return moved;
}

bool MessageExecution::run_ready(Turn& turn) {
  bool moved = false;
  while (!ready_.empty() && status_.ok()) {
    if (turn.is_over()) return post_receives(turn) || moved;
    const Ready ready = ready_.back();
    ready_.pop_back();
    run_step(ready, turn);
    moved = true;
  }
  return moved;
}

// A message that finds no receive has to be kept, in memory that is allocated for it, so receives
// are posted even where the turn is over.
bool MessageExecution::post_receives(Turn& turn) {
  bool moved = false;
  for (std::size_t i = ready_.size(); i-- > 0 && status_.ok();) {
    const Ready ready = ready_[i];
    const auto& step = plan_->schedule().steps[static_cast<std::size_t>(ready.step)];
    if (step.kind != schedule::StepKind::recv) continue;
    ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(i));
    run_step(ready, turn);
    moved = true;
  }
  return moved;
}

// Goes on in the lanes whose team has reached the sync. Returns whether there is one.
bool MessageExecution::end_syncs() {
  bool moved = false;
  for (std::uint32_t index = 0; index < lanes_.size() && status_.ok(); ++index) {
    Lane& lane = lanes_[index];
    if (lane.sync == kNone || !team_->sync_is_complete(turn_of(lane.segment))) continue;
    if (const Status agreed = team_->agree(turn_of(lane.segment), call_); !agreed.ok()) {
      fail(agreed);
      return true;
    }
    step_done(index, std::exchange(lane.sync, kNone));
    moved = true;
  }
  return moved;
}

// Where the buffer of a place begins. Only send() and reductions read through an address made from
// `input`, so nothing of the caller's is written.
BufferRef MessageExecution::locate(const Lane& lane, const schedule::Place& place) const {
  switch (place.slot.buffer) {
    case schedule::Buffer::input:
      return call_.input;
    case schedule::Buffer::output:
      return call_.output;
    default:
      return {.data = plan_->is_shared(place.slot) ? team_->slots(place.rank, turn_of(lane.segment))
                                                   : lane.scratch};
  }
}

void MessageExecution::run_step(Ready ready, Turn& turn) {
  Lane& lane = lanes_[ready.lane];
  const schedule::Step& step = plan_->schedule().steps[static_cast<std::size_t>(ready.step)];
  if (step.kind == schedule::StepKind::send || step.kind == schedule::StepKind::recv) {
    return post(ready.lane, ready.step, turn);
  }
  if (step.kind == schedule::StepKind::sync) {
    lane.sync = ready.step;
    return team_->reach_sync(turn_of(lane.segment));
  }
  StepCursor cursor{.element = ready.element};
  const auto locate_place = [&](const schedule::Place& place) { return locate(lane, place); };
  const bool takes = team_ != nullptr && team_->takes_lines();
  const Status status =
      local_.run(step, lane.segment, locate_place, cursor, turn, host_queue(), takes);
  if (!status.ok()) return fail(status);
  const bool has_ended = cursor.step > 0;
  if (!has_ended) return ready_.push_back({ready.lane, ready.step, cursor.element});
  step_done(ready.lane, ready.step);
}

void MessageExecution::post(std::uint32_t lane_index, std::int32_t index, Turn& turn) {
  Lane& lane = lanes_[lane_index];
  const schedule::Schedule& steps = plan_->schedule();
  const schedule::Step& step = steps.steps[static_cast<std::size_t>(index)];
  Lane::Message& message = lane.messages[static_cast<std::size_t>(index)];
  transport::Request& request = message.request;
  request.peer = membership_->job_rank(step.peer);
  request.key = {.group = membership_->group,
                 .sequence = call_.sequence,
                 .segment = lane.segment,
                 .message = static_cast<std::uint32_t>(step.message)};
  request.operation = call_.operation;
  request.completions = &completions_;
  request.cookie = cookie_of(lane_index, index);
  request.outgoing = {};
  request.incoming = {};
  const bool sends = step.kind == schedule::StepKind::send;
  const auto places = sends ? steps.sources(step) : steps.targets(step);
  if (!places.empty()) {  // A message without a slot is a signal.
    const schedule::Place& place = places.front();
    const Plan::Range range = plan_->range(place, lane.segment);
    // Chunks may be of different lengths. If this one has ended before the segment, both sides know
    // it. The first segment's message goes even if it is empty, to find ranks that disagree.
    if (range.count == 0 && lane.segment > 0) return step_done(lane_index, index);
    if (counts_by_message(call_.operation)) {
      request.operation.count = plan_->chunk_elements(place.slot.chunk);
    }
    std::byte* bytes = locate(lane, place).data + range.offset_bytes;
    if (sends) {
      turn.spend(range.bytes());
      request.outgoing = {bytes, range.bytes()};
    } else {
      request.incoming = {bytes, range.bytes()};
    }
  }
  message.in_flight = true;
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
  if (--lane.steps_left > 0) return;
  if (team_ != nullptr) team_->end(turn_of(lane.segment));
  --segments_left_;
  start_segments();
}

// Goes on behind the messages that have ended. Returns whether there are any.
bool MessageExecution::take_completions() {
  const bool any = !completions_.empty();
  for (; !completions_.empty(); completions_.pop()) {
    const transport::Completion& completion = completions_.front();
    const auto lane = static_cast<std::uint32_t>(completion.cookie >> 32);
    const auto step = static_cast<std::int32_t>(completion.cookie & 0xffffffff);
    lanes_[lane].messages[static_cast<std::size_t>(step)].in_flight = false;
    if (!completion.status.ok()) {
      fail(completion.status);
    } else if (status_.ok()) {
      step_done(lane, step);
    }
  }
  return any;
}

void MessageExecution::fail(const Status& status) {
  if (status_.ok()) status_ = status;
}

std::vector<Rank> MessageExecution::waiting_for() const {
  std::vector<Rank> ranks;
  std::vector<Rank> takers;
  for (const Lane& lane : lanes_) {
    for (std::size_t i = 0; i < lane.messages.size(); ++i) {
      const schedule::Step& step = plan_->schedule().steps[i];
      if (!lane.messages[i].in_flight) continue;
      (step.kind == schedule::StepKind::recv ? ranks : takers).push_back(step.peer);
    }
    if (lane.sync != kNone) team_->append_late(turn_of(lane.segment), ranks);
  }
  // A rank that has received all that it can waits for those that take what it sends.
  if (ranks.empty()) ranks = std::move(takers);
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace stretto::execution
