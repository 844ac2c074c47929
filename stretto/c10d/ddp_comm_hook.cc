// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/c10d/ddp_comm_hook.h"

#include "stretto/c10d/errors.h"
#include "stretto/reducer/bucket_memory.h"
#include "stretto/torch/matrix_rows.h"

namespace stretto::c10d_backend {

void DdpCommHook::attach(c10::intrusive_ptr<ProcessGroupStretto> group,
                         const std::vector<std::string>& names, const Tensors& parameters) {
  std::vector<GradientDescription> gradients;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    if (!parameter.device().is_cpu()) {
      refuse(
          "parameter '{}' is on {}, and stretto.hooks compress gradients on the CPU only; use no "
          "hook of stretto's with this model",
          names.at(i), parameter.device().str());
    }
    gradients.push_back({.name = names.at(i),
                         .dtype = OperationTensors().describe(parameter).dtype,
                         .count = static_cast<std::size_t>(parameter.numel()),
                         .rows = rows_in_memory(parameter)});
  }
  group->run([&](Communicator& communicator) {
    hook_->claim(owner_, group->timeout());
    hook_->attach(communicator, gradients);
    attached_to_ = communicator.serial();
  });
  group_ = std::move(group);
}

void DdpCommHook::reduce(std::size_t index, bool is_last, const at::Tensor& buffer,
                         const Tensors& gradients, const std::vector<std::size_t>& numbers) {
  if (buffer.is_sparse()) {
    refuse(
        "a gradient is sparse, and stretto.hooks reduce dense ones; use no hook with this model: "
        "sparse gradients travel as their rows then");
  }
  if (index == 0) {
    buckets_.clear();  // Of a step that has failed.
    ++step_;
  }
  auto bucket = std::make_unique<Bucket>();
  bucket->buffer = buffer;
  bucket->numbers = numbers;
  const View whole = OperationTensors(OperationTensors::Use::reduced).in_place(buffer);
  for (const at::Tensor& gradient : gradients) {
    bucket->views.push_back({static_cast<std::byte*>(gradient.data_ptr()),
                             static_cast<std::size_t>(gradient.numel()), whole.dtype});
    bucket->silent.push_back(HostBuckets().is_zero(bucket->views.back().span()) ? 1 : 0);
  }
  bucket->full = {.index = index,
                  .of_count = is_last ? index + 1 : index + 2,
                  .step = step_,
                  .view = whole,
                  .gradients = bucket->numbers,
                  .gradient_views = bucket->views,
                  .silent = bucket->silent,
                  .timeout = group_->timeout()};
  group_->run([&](Communicator& communicator) {
    if (communicator.serial() != attached_to_) {
      refuse(
          "this hook knows the members that the process group had before reconfigure(): wrap the "
          "model again, and register a hook with that");
    }
    bucket->work = hook_->start(communicator, bucket->full);
    buckets_.push_back(std::move(bucket));
    if (!is_last) return;
    for (const auto& each : buckets_) {
      each->work.wait();
      hook_->finish(each->full);
    }
    buckets_.clear();
  });
}

void DdpCommHook::load(std::span<const std::byte> state) {
  for_torch([&] { hook_->load(state); });
}

}  // namespace stretto::c10d_backend
