// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/mapped_execution.h"

#include <algorithm>
#include <iterator>

namespace stretto::communicator {
namespace {

Status needs_registered_buffers() {
  return {StatusCode::invalid_argument,
          "algorithm direct_mapped needs registered buffers on all ranks: Communicator::allocate "
          "makes them"};
}

}  // namespace

MappedExecution::MappedExecution(Plans plans, const Membership& membership, Windows& windows,
                                 transport::Transport& transport)
    : membership_(&membership), windows_(&windows), transport_(&transport) {
  if (plans.direct != nullptr) direct_ = std::make_unique<Runner>(std::move(plans.direct));
  if (plans.staged != nullptr) staged_ = std::make_unique<Runner>(std::move(plans.staged));
  if (direct_ == nullptr) staged_->in_posts = InlineSteps::create(*staged_->plan, windows);
  const Rank self = membership.job_rank(membership.rank);
  std::ranges::copy_if(membership.members, std::back_inserter(others_),
                       [&](Rank member) { return member != self; });
  inputs_.resize(membership.members.size());
  outputs_.resize(membership.members.size());
  found_.of.resize(membership.members.size());
  found_.held.resize(2 * membership.members.size());
}

Status MappedExecution::check_buffers(const std::byte* input, const std::byte* output) const {
  if (staged_ != nullptr) return {};
  const Rank self = membership_->rank;
  const auto reaches = [&](const std::byte* data, std::size_t bytes) {
    return bytes == 0 || transport_->locate(data, bytes).valid();
  };
  const bool registered =
      reaches(input, plan().input_bytes(self)) && reaches(output, plan().output_bytes(self));
  return registered ? Status() : needs_registered_buffers();
}

void MappedExecution::start(const Call& call) {
  alone_ = false;
  call_ = call;
  if (!is_found(call.input, call.output)) find_own();
  enter();
}

bool MappedExecution::start_alone(const OperationDescriptor& operation, const std::byte* input,
                                  std::byte* output, std::uint32_t sequence) {
  if (!is_found(input, output)) return false;
  alone_ = true;
  call_.operation = operation;
  call_.input = input;
  call_.output = output;
  call_.sequence = sequence;
  enter();
  return true;
}

bool MappedExecution::is_found(const std::byte* input, const std::byte* output) const {
  if (direct_ == nullptr) return true;
  return found_.is_own_known && found_.input == input && found_.output == output &&
         found_.generation == transport_->memory_generation();
}

void MappedExecution::find_own() {
  found_.generation = transport_->memory_generation();
  found_.is_own_known = true;
  found_.are_others_known = false;
  found_.input = call_.input;
  found_.output = call_.output;
  const Rank self = membership_->rank;
  const auto input = transport_->locate(call_.input, plan().input_bytes(self));
  const auto output = transport_->locate(call_.output, plan().output_bytes(self));
  found_.own = {.input_offset_bytes = input.offset_bytes,
                .output_offset_bytes = output.offset_bytes,
                .input_region = input.region,
                .output_region = output.region};
}

// What has no bytes needs no registered memory.
bool MappedExecution::is_registered(Rank member, const Post::Buffers& buffers) const {
  return (buffers.input().valid() || plan().input_bytes(member) == 0) &&
         (buffers.output().valid() || plan().output_bytes(member) == 0);
}

void MappedExecution::enter() {
  status_ = Status();
  runner_ = nullptr;
  arrived_ = 0;
  segment_ = 0;
  next_step_ = 0;
  all_registered_ = direct_ != nullptr;
  all_laid_out_ = true;
  phase_ = Phase::entering;
  ++windows_->entered;
  if (direct_ == nullptr || (staged_ != nullptr && !is_registered(membership_->rank, found_.own))) {
    begin_staged();
  }
  post();
}

// What a rank does before the first sync touches only its own input and slots that nobody uses any
// more: it has ended the operation before, so all have entered that one, hence ended those that
// used these slots (see staged_mapped.cc, Note [one sync fewer]).
void MappedExecution::begin_staged() {
  runner_ = staged_.get();
  if (runner_->in_posts) return runner_->in_posts->lay_out(call_);
  run_steps();
}

void MappedExecution::post() {
  Post& post = *posted_by(static_cast<std::size_t>(membership_->rank));
  post.operation = call_.operation;
  post.sequence = call_.sequence;
  if (direct_ != nullptr) post.buffers = found_.own;
  // Release: whoever sees the count sees the post, the input that was written before this call, and
  // what has been laid out.
  post.entered.store(windows_->entered, std::memory_order_release);
  tell();
}

// To wake others may show that one is lost, upon which the group ends, or fails, what is in flight:
// this, in the middle of a step.
bool MappedExecution::advance() {
  if (advancing_) return false;
  advancing_ = true;
  alone_ = false;
  const bool moved = go_on();
  advancing_ = false;
  return moved;
}

bool MappedExecution::advance_alone(bool& wake_others) {
  alone_ = true;
  const bool moved = go_on();
  wake_others = wake_others_;
  return moved;
}

bool MappedExecution::go_on() {
  bool moved = false;
  while (status_.ok()) {
    if (phase_ == Phase::entering) {
      if (!read_posts() || !choose()) return moved;
    } else if (phase_ == Phase::running) {
      run_to_sync();
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
    const Post& post = *posted_by(arrived_);
    // Acquire: pairs with the release in post(). A count beyond ours would be a peer's bug; it
    // cannot be ahead by two, so the post is that of this operation.
    if (post.entered.load(std::memory_order_acquire) < windows_->entered) return false;
    if (!(post.operation == call_.operation)) {
      const OperationDescriptor theirs = post.operation;
      status_ = transport::mismatch_status(membership_->members[arrived_], theirs,
                                           membership_->job_rank(membership_->rank),
                                           call_.operation, call_.sequence);
      return true;
    }
    if (direct_ == nullptr) continue;
    const bool registered = is_registered(static_cast<std::int32_t>(arrived_), post.buffers);
    all_registered_ = all_registered_ && registered;
    all_laid_out_ = all_laid_out_ && !registered;
  }
  return true;
}

// Picks direct or staged, as every other rank does from the same posts; or ends what is all in the
// posts, which are its only sync. False: ask again later.
bool MappedExecution::choose() {
  if (!status_.ok()) return true;
  if (runner_ != nullptr && runner_->in_posts) {
    runner_->in_posts->finish(call_);
    phase_ = Phase::ended;
    return true;
  }
  if (all_registered_) {
    if (!are_resolved() && (alone_ || !resolve_buffers())) return false;
    runner_ = direct_.get();
    next_step_ = 1;  // Posting was the first sync.
  } else if (staged_ == nullptr) {
    status_ = needs_registered_buffers();
  } else {
    // Who has registered buffers could not know that others have not: all meet once more.
    if (runner_ == nullptr) begin_staged();
    if (all_laid_out_) ++next_step_;
  }
  phase_ = Phase::running;
  return true;
}

bool MappedExecution::let_go() {
  if (phase_ != Phase::ended) return false;
  found_.is_own_known = false;
  found_.are_others_known = false;
  for (std::shared_ptr<void>& memory : found_.held) memory.reset();
  return true;
}

bool MappedExecution::are_resolved() const {
  if (!found_.are_others_known || found_.generation != transport_->memory_generation()) {
    return false;
  }
  for (std::size_t i = 0; i < windows_->of.size(); ++i) {
    if (!(posted_by(i)->buffers == found_.of[i])) return false;
  }
  return true;
}

// False while some rank's region has been announced in its post but has not arrived here yet.
bool MappedExecution::resolve_buffers() {
  // What is found now is good until the memory changes after this.
  const std::uint64_t generation = transport_->memory_generation();
  for (std::size_t i = 0; i < windows_->of.size(); ++i) {
    const Post::Buffers& buffers = posted_by(i)->buffers;
    const Rank job_rank = membership_->members[i];
    const Rank member = static_cast<std::int32_t>(i);
    const std::size_t input_bytes = plan().input_bytes(member);
    const std::size_t output_bytes = plan().output_bytes(member);
    // First: then what is found is still there.
    found_.held[2 * i] = transport_->hold(job_rank, buffers.input());
    found_.held[2 * i + 1] = transport_->hold(job_rank, buffers.output());
    inputs_[i] =
        input_bytes == 0 ? nullptr : transport_->resolve(job_rank, buffers.input(), input_bytes);
    outputs_[i] =
        output_bytes == 0 ? nullptr : transport_->resolve(job_rank, buffers.output(), output_bytes);
    const bool complete = (input_bytes == 0 || inputs_[i] != nullptr) &&
                          (output_bytes == 0 || outputs_[i] != nullptr);
    if (!complete) return false;
    found_.of[i] = buffers;
  }
  found_.generation = generation;
  found_.are_others_known = true;
  return true;
}

// Runs steps up to the next sync, of which next_step_ is then the number, or to the end of the
// segment; says which.
bool MappedExecution::run_steps() {
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
  const auto& steps = runner_->plan->schedule().steps;
  for (; next_step_ < steps.size(); ++next_step_) {
    const schedule::Step& step = steps[next_step_];
    if (step.kind == schedule::StepKind::sync) return true;
    status_ = runner_->local.run(step, segment_, base_of);
    if (!status_.ok()) return false;
  }
  return false;
}

void MappedExecution::run_to_sync() {
  while (!run_steps()) {
    if (!status_.ok()) return;
    next_step_ = 0;
    ++windows_->staging_turn;
    if (++segment_ == runner_->plan->segment_count()) {
      phase_ = Phase::ended;
      return;
    }
  }
  ++next_step_;
  reach_sync();
}

void MappedExecution::reach_sync() {
  ++windows_->syncs;
  // Release: what this rank has written and read before is over for whoever sees the count.
  own().syncs.store(windows_->syncs, std::memory_order_release);
  tell();
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

// Others may sleep until what has just been stored.
void MappedExecution::tell() {
  if (!alone_) return notify_all();
  for (const Rank other : others_) wake_others_ = wake_others_ || transport_->sleeps(other);
}

void MappedExecution::notify_all() {
  wake_others_ = false;
  for (const Rank other : others_) transport_->notify(other);
}

void MappedExecution::fail(const Status& status) {
  if (status_.ok()) status_ = status;
  phase_ = Phase::ended;
}

std::vector<Rank> MappedExecution::waiting_for() const {
  std::vector<Rank> ranks;
  for (std::size_t i = 0; i < windows_->of.size(); ++i) {
    const std::uint64_t entered = posted_by(i)->entered.load(std::memory_order_relaxed);
    const std::uint64_t syncs = windows_->of[i]->syncs.load(std::memory_order_relaxed);
    const bool late = (phase_ == Phase::syncing && syncs < windows_->syncs) ||
                      (phase_ == Phase::entering && entered < windows_->entered);
    if (late) ranks.push_back(static_cast<int>(i));
  }
  return ranks;
}

}  // namespace stretto::communicator
