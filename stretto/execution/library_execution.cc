// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/execution/library_execution.h"

#include <algorithm>
#include <utility>

#include "stretto/base/mutex.h"
#include "stretto/base/round_up.h"
#include "stretto/execution/told_shares.h"
#include "stretto/kernel/copy.h"
#include "stretto/kernel/reduce.h"

namespace stretto::execution {
namespace {

// A library may still write to its copies, whatever becomes of the operation and its group.
void keep_for_good(std::shared_ptr<std::byte[]> copies) {
  static Mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<std::byte[]>>;
  const MutexLock held(mutex);
  kept->push_back(std::move(copies));
}

}  // namespace

LibraryPlan make_library_plan(const Plan& whole, const CollectiveLibrary& library) {
  const schedule::Schedule& shape = whole.schedule();
  LibraryPlan plan{.operation = whole.operation(),
                   .input_bytes = whole.input_bytes(shape.rank),
                   .output_bytes = whole.output_bytes(shape.rank)};
  if (plan.operation.op == ReduceOp::mean && !library.can_run(plan.operation)) {
    plan.operation.op = ReduceOp::sum;
    plan.divisor = whole.divisor();
  }
  const bool exchanges = plan.operation.collective == Collective::all_to_all;
  if (!has_shares(plan.operation.collective)) return plan;
  const std::int32_t ranks = shape.rank_count;
  for (std::int32_t r = 0; r < ranks; ++r) {
    const std::int32_t sent = exchanges ? shape.rank.value() * ranks + r : r;
    plan.counts.push_back(whole.chunk_elements(sent));
    if (exchanges) plan.received.push_back(whole.chunk_elements(r * ranks + shape.rank.value()));
  }
  return plan;
}

LibraryExecution::LibraryExecution(std::shared_ptr<const LibraryPlan> plan,
                                   std::shared_ptr<const Plan> meeting, SharedLibrary& shared,
                                   const Membership& membership, transport::Endpoint& transport)
    : plan_(std::move(plan)),
      shared_(&shared),
      membership_(&membership),
      meeting_(std::move(meeting), membership, transport) {
  if (shared_->library->gives_buffers_back()) return;
  // Empty buffers get different addresses, too: Open MPI takes equal ones for an operation in
  // place.
  input_room_bytes_ = round_up(std::max<std::size_t>(plan_->input_bytes, 1), kCacheLineBytes);
  copies_bytes_ = input_room_bytes_ + plan_->output_bytes;
  copies_ = std::shared_ptr<std::byte[]>(new std::byte[copies_bytes_]);
}

void LibraryExecution::start(const Call& call, Turn& turn) {
  call_ = call;
  status_ = {};
  phase_ = Phase::meeting;
  turn_ = shared_->taken++;
  copied_bytes_ = 0;
  Call signal{.operation = call.operation, .sequence = call.sequence};
  if (counts_by_message(call.operation)) {
    signal.operation.count = 0;  // Each rank has a count of its own.
    told_.assign(plan_->counts.size(), 0);
    signal.input = transport::BufferRef::own(plan_->counts.data());
    signal.output = transport::BufferRef::own(told_.data());
  }
  meeting_.start(signal, turn);
}

// A library that gives buffers back may take a moment for it.
bool LibraryExecution::ended() const {
  if (phase_ == Phase::giving_back) return shared_->library->for_devices()->has_given_back();
  return phase_ == Phase::ended || !status().ok();
}

bool LibraryExecution::advance(Turn& turn) {
  if (phase_ == Phase::giving_back || ended()) return false;
  bool moved = false;
  if (phase_ == Phase::meeting) {
    moved = meeting_.advance(turn);
    moved = copy_in(turn) || moved;
    const bool is_ready = meeting_.ended() && (copies_ == nullptr || is_copied_in());
    if (!status().ok() || !is_ready || shared_->begun != turn_) return moved;
    if (const Status compared = compare_counts(); !compared.ok()) {
      fail(compared);
      return true;
    }
    hand_over();
    moved = true;
  }
  if (phase_ == Phase::running && shared_->library->has_ended(operation_)) {
    phase_ = Phase::unpacking;
    copied_bytes_ = 0;
    moved = true;
  }
  if (const LibraryFailure failure = shared_->library->failure(); failure.code != StatusCode::ok) {
    fail({failure.code, failure.text});
    return true;
  }
  if (phase_ != Phase::unpacking) return moved;
  return copy_out(turn) || moved;
}

Status LibraryExecution::compare_counts() const {
  static_assert(sizeof(std::size_t) == size_bytes(DType::u64));
  if (!counts_by_message(call_.operation) || told_ == plan_->received) return {};
  const auto differs = std::ranges::mismatch(told_, plan_->received);
  const Rank peer = membership_->job_rank(static_cast<int>(differs.in1 - told_.begin()));
  return counts_differ(peer, *differs.in1, membership_->job_rank(membership_->rank), *differs.in2);
}

void LibraryExecution::hand_over() {
  ++shared_->begun;
  const bool copies = copies_ != nullptr;
  operation_ = shared_->library->start(
      {.operation = plan_->operation,
       .input = copies ? copies_.get() : call_.input.data,
       .output = copies ? copies_.get() + input_room_bytes_ : call_.output.data,
       .counts = plan_->counts.empty() ? nullptr : plan_->counts.data(),
       .received = plan_->received.empty() ? nullptr : plan_->received.data(),
       .parts = call_.parts,
       .mark = call_.mark});
  phase_ = Phase::running;
}

// Copies the input as far as the turn goes. Returns whether anything was copied.
bool LibraryExecution::copy_in(Turn& turn) {
  if (copies_ == nullptr || is_copied_in() || turn.is_over()) return false;
  const std::size_t left = plan_->input_bytes - copied_bytes_;
  const std::size_t bytes = turn.take(left, 2);
  kernel::copy(copies_.get() + copied_bytes_, call_.input.data + copied_bytes_, bytes,
               kernel::Store::automatic, plan_->input_bytes);
  copied_bytes_ += bytes;
  return true;
}

// Copies the results to the output, and divides them if the library has made a sum for a mean.
bool LibraryExecution::copy_out(Turn& turn) {
  const std::size_t all = copies_ == nullptr && plan_->divisor == 1 ? 0 : plan_->output_bytes;
  if (copied_bytes_ == all) {
    phase_ = Phase::ended;
    return true;
  }
  if (turn.is_over()) return false;
  const DType dtype = plan_->operation.dtype;
  const std::size_t elements =
      turn.take((all - copied_bytes_) / size_bytes(dtype), 2 * size_bytes(dtype));
  const std::byte* results =
      copies_ == nullptr ? call_.output.data : copies_.get() + input_room_bytes_;
  std::byte* const to = call_.output.data + copied_bytes_;
  if (plan_->divisor == 1) {
    kernel::copy(to, results + copied_bytes_, elements * size_bytes(dtype));
  } else {
    const kernel::Input input{.data = results + copied_bytes_, .dtype = dtype};
    void* const output = to;
    const Status divided = kernel::reduce({.dtype = dtype,
                                           .output_dtype = dtype,
                                           .divisor = plan_->divisor,
                                           .count = elements,
                                           .inputs = std::span(&input, 1),
                                           .outputs = std::span(&output, 1)});
    if (!divided.ok()) fail(divided);
  }
  copied_bytes_ += elements * size_bytes(dtype);
  return true;
}

void LibraryExecution::fail(const Status& status) {
  if (phase_ == Phase::giving_back) return;
  if (status_.ok()) status_ = status;
  meeting_.fail(status);
  if (phase_ == Phase::running && copies_ != nullptr) keep_for_good(copies_);
  const bool is_on_device = phase_ == Phase::running && shared_->library->for_devices() != nullptr;
  phase_ = is_on_device ? Phase::giving_back : Phase::ended;
  shared_->abandon();
}

std::shared_ptr<DeviceEnd> LibraryExecution::end_on_device() const {
  DeviceLibrary* const devices = shared_->library->for_devices();
  const bool is_handed_over = phase_ == Phase::running && devices != nullptr;
  return is_handed_over ? devices->end_on_device(operation_) : nullptr;
}

std::vector<Rank> LibraryExecution::waiting_for() const {
  return phase_ == Phase::running ? membership_->others() : meeting_.waiting_for();
}

}  // namespace stretto::execution
