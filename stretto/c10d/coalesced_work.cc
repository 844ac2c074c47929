// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <utility>

#include <ATen/core/ivalue.h>

#include "stretto/c10d/work.h"
#include "stretto/torch_device/streams.h"

namespace stretto::c10d_backend {

using c10::ivalue::Future;

void CoalescedWork::add(c10::intrusive_ptr<WorkStretto> part) {
  // Not a part that a graph captures: streams still have to wait for it.
  while (!parts_.empty() && parts_.front()->isSuccess() &&
         !parts_.front()->operation().is_captured) {
    forget(*parts_.front());
    parts_.front()->leave_registry();
    parts_.pop_front();
  }
  number_ = part->getSequencenumber();
  parts_.push_back(std::move(part));
}

void CoalescedWork::forget(WorkStretto& part) {
  longest_ms_ = std::max(longest_ms_, part.getDuration());
  const std::optional<c10::Stream>& stream = part.operation().stream;
  if (stream && std::find(streams_.begin(), streams_.end(), *stream) == streams_.end()) {
    streams_.push_back(*stream);
  }
  std::erase_if(results_, [](const WeakTensor& each) { return each.expired(); });
  for (const at::Tensor& tensor : part.result()) {
    const WeakTensor weak(tensor.getIntrusivePtr());
    if (std::find(results_.begin(), results_.end(), weak) == results_.end()) {
      results_.push_back(weak);
    }
  }
}

std::vector<at::Tensor> CoalescedWork::forgotten_results() const {
  std::vector<at::Tensor> tensors;
  for (const WeakTensor& each : results_) {
    if (auto held = each.lock()) tensors.emplace_back(std::move(held));
  }
  return tensors;
}

bool CoalescedWork::isCompleted() {
  bool all = true;
  for (const auto& part : parts_) all = part->isCompleted() && all;
  return all;
}

bool CoalescedWork::isSuccess() const {
  return std::all_of(parts_.begin(), parts_.end(),
                     [](const auto& part) { return part->isSuccess(); });
}

std::exception_ptr CoalescedWork::exception() const {
  for (const auto& part : parts_) {
    if (const std::exception_ptr failure = part->exception()) return failure;
  }
  return nullptr;
}

std::vector<at::Tensor> CoalescedWork::result() {
  std::vector<at::Tensor> all = forgotten_results();
  for (const auto& part : parts_) {
    for (at::Tensor& tensor : part->result()) all.push_back(std::move(tensor));
  }
  return all;
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  for (const c10::Stream& each : streams_) let_wait(current_stream(each.device()), each);
  const Deadline deadline = deadline_of(timeout);
  for (const auto& part : parts_) part->wait_until(deadline, timeout);
  return true;
}

float CoalescedWork::getDuration() const {
  float longest = longest_ms_;
  for (const auto& part : parts_) longest = std::max(longest, part->getDuration());
  return longest;
}

void CoalescedWork::abort() {
  if (!parts_.empty()) parts_.front()->abort();
}

c10::intrusive_ptr<Future> CoalescedWork::getFuture() {
  c10::List<c10::intrusive_ptr<Future>> futures(
      c10::FutureType::create(c10::ListType::ofTensors()));
  for (const auto& part : parts_) futures.push_back(part->getFuture());
  return c10::collectAll(futures)->then(
      [forgotten = forgotten_results()](Future& all) {
        std::vector<at::Tensor> tensors = forgotten;
        for (const c10::IValue& part : all.value().toListRef()) {
          for (const at::Tensor& tensor : part.toFuture()->value().toTensorVector()) {
            tensors.push_back(tensor);
          }
        }
        return c10::IValue(std::move(tensors));
      },
      c10::ListType::ofTensors());
}

c10::intrusive_ptr<Future> CoalescedWork::getFutureResult() {
  c10::List<c10::intrusive_ptr<Future>> futures(c10::FutureType::create(c10::IntType::get()));
  for (const auto& part : parts_) futures.push_back(part->getFutureResult());
  return c10::collectAll(futures)->then(
      [](Future& all) {
        auto first_failure = static_cast<int64_t>(::c10d::WorkResult::SUCCESS);
        for (const c10::IValue& part : all.value().toListRef()) {
          if (first_failure == 0) first_failure = part.toFuture()->value().toInt();
        }
        return c10::IValue(first_failure);
      },
      c10::IntType::get());
}

}  // namespace stretto::c10d_backend
