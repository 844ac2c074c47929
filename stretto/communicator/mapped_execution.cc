// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/mapped_execution.h"

#include <algorithm>

namespace stretto::communicator {

MappedExecution::MappedExecution(Plans plans, const Membership& membership, Windows& windows,
                                 transport::Transport& transport)
    : membership_(&membership), windows_(&windows), transport_(&transport) {
  if (plans.direct != nullptr) direct_ = std::make_unique<Runner>(std::move(plans.direct));
  if (plans.staged != nullptr) staged_ = std::make_unique<Runner>(std::move(plans.staged));
  inputs_.resize(membership.members.size());
  outputs_.resize(membership.members.size());
}

void MappedExecution::start(const Call& call) {
  call_ = call;
  status_ = Status();
  runner_ = nullptr;
  arrived_ = 0;
  all_registered_ = direct_ != nullptr;
  phase_ = Phase::entering;
  post();
}

void MappedExecution::post() {
  const Rank self = membership_->rank;
  Post& post = own().posts[windows_->entered % 2];
  ++windows_->entered;
  post.operation = call_.operation;
  post.sequence = call_.sequence;
  const auto input = transport_->locate(call_.input, plan().input_bytes(self));
  const auto output = transport_->locate(call_.output, plan().output_bytes(self));
  post.input_region = input.region;
  post.input_offset_bytes = input.offset_bytes;
  post.output_region = output.region;
  post.output_offset_bytes = output.offset_bytes;
  // Release: whoever sees the count sees the post, and the input that was written before this call.
  post.entered.store(windows_->entered, std::memory_order_release);
  notify_all();
}

bool MappedExecution::advance() {
  bool moved = false;
  while (status_.ok()) {
    if (phase_ == Phase::entering) {
      if (!read_posts() || !choose()) return moved;
    } else if (phase_ == Phase::running) {
      run_steps();
    } else if (phase_ == Phase::syncing) {
      if (!sync_complete()) return moved;
      phase_ = Phase::running;
    } else {
      break;
    }
    moved = true;
  }
  if (!status_.ok()) phase_ = Phase::ended;
  return moved;
}

// Whether all members have entered; takes in their posts as they come.
bool MappedExecution::read_posts() {
  for (; arrived_ < windows_->of.size(); ++arrived_) {
    const Post& post = windows_->of[arrived_]->posts[(windows_->entered - 1) % 2];
    // Acquire: pairs with the release in post(). A count beyond ours would be a peer's bug; it
    // cannot be ahead by two, so the post is that of this operation.
    if (post.entered.load(std::memory_order_acquire) < windows_->entered) return false;
    const OperationDescriptor theirs = post.operation;
    if (!(theirs == call_.operation)) {
      status_ = transport::mismatch_status(membership_->members[arrived_], theirs,
                                           membership_->job_rank(membership_->rank),
                                           call_.operation, call_.sequence);
      return true;
    }
    // What has no bytes needs no registered memory.
    const Rank member = static_cast<std::int32_t>(arrived_);
    all_registered_ = all_registered_ &&
                      (post.input().valid() || plan().input_bytes(member) == 0) &&
                      (post.output().valid() || plan().output_bytes(member) == 0);
  }
  return true;
}

// Picks direct or staged, as every other rank does from the same posts. False: ask again later.
bool MappedExecution::choose() {
  if (!status_.ok()) return true;
  if (all_registered_) {
    if (!resolve_buffers()) return false;
    begin(*direct_);
    // Entering was the first sync.
    next_step_ = 1;
    return true;
  }
  if (staged_ == nullptr) {
    status_ = status_of(StatusCode::invalid_argument,
                        "algorithm direct_mapped needs registered buffers on all ranks: "
                        "Communicator::allocate makes them");
    return true;
  }
  begin(*staged_);
  return true;
}

// False while some rank's region has been announced in its post but has not arrived here yet.
bool MappedExecution::resolve_buffers() {
  for (std::size_t i = 0; i < windows_->of.size(); ++i) {
    const Post& post = windows_->of[i]->posts[(windows_->entered - 1) % 2];
    const Rank job_rank = membership_->members[i];
    const Rank member = static_cast<std::int32_t>(i);
    const std::size_t input_bytes = plan().input_bytes(member);
    const std::size_t output_bytes = plan().output_bytes(member);
    inputs_[i] =
        input_bytes == 0 ? nullptr : transport_->resolve(job_rank, post.input(), input_bytes);
    outputs_[i] =
        output_bytes == 0 ? nullptr : transport_->resolve(job_rank, post.output(), output_bytes);
    const bool complete = (input_bytes == 0 || inputs_[i] != nullptr) &&
                          (output_bytes == 0 || outputs_[i] != nullptr);
    if (!complete) return false;
  }
  return true;
}

void MappedExecution::begin(Runner& runner) {
  runner_ = &runner;
  segment_ = 0;
  next_step_ = 0;
  phase_ = Phase::running;
}

// Runs steps up to the next sync or the end.
void MappedExecution::run_steps() {
  const auto base_of = [&](const schedule::Place& place) -> std::byte* {
    const auto rank = static_cast<std::size_t>(place.rank);
    const bool own_place = place.rank == membership_->rank;
    switch (place.slot.buffer) {
      case schedule::Buffer::input:
        return own_place ? const_cast<std::byte*>(call_.input) : inputs_[rank];
      case schedule::Buffer::output:
        return own_place ? call_.output : outputs_[rank];
      default:
        return windows_->of[rank]->half(windows_->staging_turn);
    }
  };
  const schedule::Schedule& steps = runner_->plan->schedule();
  while (true) {
    if (next_step_ == steps.steps.size()) {
      next_step_ = 0;
      ++windows_->staging_turn;
      if (++segment_ < runner_->plan->segment_count()) continue;
      phase_ = Phase::ended;
      return;
    }
    const schedule::Step& step = steps.steps[next_step_++];
    if (step.kind == schedule::StepKind::sync) return reach_sync();
    status_ = runner_->local.run(step, segment_, base_of);
    if (!status_.ok()) return;
  }
}

void MappedExecution::reach_sync() {
  ++windows_->syncs;
  // Release: what this rank has written and read before is over for whoever sees the count.
  own().syncs.store(windows_->syncs, std::memory_order_release);
  notify_all();
  arrived_ = 0;
  phase_ = Phase::syncing;
}

bool MappedExecution::sync_complete() {
  for (; arrived_ < windows_->of.size(); ++arrived_) {
    // Acquire: pairs with the release above; this rank may now read what that one wrote.
    if (windows_->of[arrived_]->syncs.load(std::memory_order_acquire) < windows_->syncs) {
      return false;
    }
  }
  return true;
}

void MappedExecution::notify_all() {
  for (const Rank member : membership_->members) transport_->notify(member);
}

void MappedExecution::fail(const Status& status) {
  if (status_.ok()) status_ = status;
  phase_ = Phase::ended;
}

std::vector<Rank> MappedExecution::waiting_for() const {
  std::vector<Rank> ranks;
  for (std::size_t i = 0; i < windows_->of.size(); ++i) {
    const Window& window = *windows_->of[i];
    const bool late =
        phase_ == Phase::syncing
            ? window.syncs.load(std::memory_order_relaxed) < windows_->syncs
            : phase_ == Phase::entering && window.posts[(windows_->entered - 1) % 2].entered.load(
                                               std::memory_order_relaxed) < windows_->entered;
    if (late) ranks.push_back(static_cast<int>(i));
  }
  return ranks;
}

}  // namespace stretto::communicator
