// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/cuda/staged_all_reduce.h"

#include <sched.h>

#include <algorithm>

#include "stretto/base/error.h"

namespace stretto::cuda {

StagedAllReduce::StagedAllReduce(Communicator& communicator, std::size_t slice_bytes)
    : communicator_(&communicator), slice_bytes_(slice_bytes) {}

Result<std::unique_ptr<StagedAllReduce>> StagedAllReduce::create(Communicator& communicator,
                                                                 execution::Device& device,
                                                                 const Options& options) {
  // A slice holds an element of any type.
  if (options.slots < 1 || options.slice_bytes < size_bytes(DType::c128)) {
    return status_of(StatusCode::invalid_argument,
                     "staging needs a slot and 16 bytes of a slice at least, not {} slots of {} "
                     "bytes",
                     options.slots, options.slice_bytes);
  }
  std::unique_ptr<StagedAllReduce> made(new StagedAllReduce(communicator, options.slice_bytes));
  STRETTO_RETURN_IF_ERROR(made->set_up(device, options.slots));
  return made;
}

Status StagedAllReduce::set_up(execution::Device& device, int slots) {
  try {
    slots_ = communicator_->allocate_bytes(static_cast<std::size_t>(slots) * slice_bytes_);
  } catch (const Error& error) {
    return error.status();
  }
  STRETTO_ASSIGN_OR_RETURN(pinned_, device.pin(slots_.bytes()));
  for (auto* queue : {&out_, &back_}) {
    STRETTO_ASSIGN_OR_RETURN(*queue, device.make_queue());
  }
  const auto begin = [this](const execution::Pipeline::Task& task) { return begin_stage(task); };
  STRETTO_ASSIGN_OR_RETURN(
      pipeline_, execution::Pipeline::create(execution::pipelines().front(),
                                             {out_.get(), &exchange_, back_.get()}, slots, begin));
  return {};
}

StagedAllReduce::~StagedAllReduce() {
  while (pipeline_ != nullptr && !pipeline_->is_idle()) ::sched_yield();
}

std::uint64_t StagedAllReduce::begin(const View& data, const AllReduceOptions& options,
                                     execution::StreamEvent* ready) {
  const std::size_t step = slice_bytes_ / size_bytes(data.dtype);
  std::size_t at = 0;
  // Empty data has a slice, too, so that ranks that disagree find out.
  do {
    const std::size_t count = std::min(step, data.count - at);
    slices_.push_back({data.slice(at, count), options});
    pipeline_->push(ready);
    at += count;
  } while (at < data.count);
  return pipeline_->pushed();
}

Status StagedAllReduce::begin_stage(const execution::Pipeline::Task& task) {
  const Slice& slice = slices_[task.slice - first_];
  std::byte* const slot =
      slots_.bytes().data() + static_cast<std::size_t>(task.slot) * slice_bytes_;
  if (task.stage == 0) return copy(*out_, slice.data, slot);
  if (task.stage == 1) return exchange(slice, slot);
  const ConstView staged(slot, slice.data.count, slice.data.dtype);
  return copy(*back_, staged, slice.data.data);
}

Status StagedAllReduce::exchange(const Slice& slice, std::byte* slot) {
  try {
    const View staged(slot, slice.data.count, slice.data.dtype);
    exchange_.follow(communicator_->all_reduce(staged, slice.options));
    return {};
  } catch (const Error& error) {
    return error.status();
  }
}

bool StagedAllReduce::advance() {
  const bool moved = pipeline_->advance();
  for (; first_ < pipeline_->ended(); ++first_) slices_.pop_front();
  return moved;
}

bool StagedAllReduce::has_ended(std::uint64_t number) const { return pipeline_->ended() >= number; }

Status StagedAllReduce::wait(std::uint64_t number, const Deadline& deadline) {
  while (!has_ended(number)) {
    const bool moved = advance();
    if (!pipeline_->status().ok() && pipeline_->is_idle()) return pipeline_->status();
    if (has_ended(number)) break;
    if (deadline.passed()) {
      return status_of(StatusCode::timeout,
                       "rank {}: the staged all_reduce has not ended: {} of {} slices have",
                       communicator_->rank().value(), pipeline_->ended(), number);
    }
    if (!moved) ::sched_yield();
  }
  return {};
}

}  // namespace stretto::cuda
