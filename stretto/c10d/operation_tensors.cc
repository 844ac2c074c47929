// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/c10d/operation_tensors.h"

#include <optional>

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include "stretto/c10d/errors.h"
#include "stretto/torch/scalar_type.h"

namespace stretto::c10d_backend {
namespace {

void check(const at::Tensor& tensor) {
  std::string problem;
  if (!tensor.defined()) {
    problem = "a tensor is undefined";
  } else if (!tensor.device().is_cpu()) {
    problem = fmt::format(
        "stretto moves tensors of the CPU, and this one is on {0}; give {0} a backend of its own: "
        "init_process_group(\"cpu:stretto,cuda:nccl\")",
        tensor.device().str());
  } else if (tensor.layout() != at::kStrided) {
    problem = "only all_reduce takes sparse tensors; make this one dense: to_dense()";
  } else {
    return;
  }
  throw_for_torch({StatusCode::invalid_argument, problem});
}

View view_of(const at::Tensor& block, bool is_reduced) {
  auto* const data = static_cast<std::byte*>(block.data_ptr());
  const auto count = static_cast<std::size_t>(block.numel());
  // Other types can be moved, as bytes.
  if (const std::optional<DType> dtype = dtype_of_scalar_type(block.scalar_type()))
    return {data, count, *dtype};
  if (is_reduced) {
    throw_for_torch(status_of(
        StatusCode::invalid_argument, "tensors of type {} can be moved, but not reduced; {}",
        c10::toString(block.scalar_type()), "convert them to float32 or another type before"));
  }
  return {data, count * block.element_size(), DType::u8};
}

}  // namespace

ConstView OperationTensors::input(const at::Tensor& tensor, bool is_reduced) {
  check(tensor);
  const at::NoGradGuard no_grad;
  kept_.push_back(tensor.resolve_conj().resolve_neg().contiguous());
  return view_of(kept_.back(), is_reduced);
}

View OperationTensors::writable(const at::Tensor& tensor, bool is_read, bool is_reduced) {
  check(tensor);
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) {
    kept_.push_back(tensor);
    return view_of(tensor, is_reduced);
  }
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    throw_for_torch({StatusCode::invalid_argument,
                     "an output has several elements in one place of its memory, as expand() makes "
                     "them; use clone() of it"});
  }
  const at::NoGradGuard no_grad;
  const at::Tensor block = at::empty(tensor.sizes(), tensor.options());
  if (is_read) block.copy_(tensor);
  copies_.push_back({tensor, block});
  return view_of(block, is_reduced);
}

View OperationTensors::output(const at::Tensor& tensor, bool is_reduced) {
  return writable(tensor, false, is_reduced);
}

View OperationTensors::in_place(const at::Tensor& tensor, bool is_reduced) {
  return writable(tensor, true, is_reduced);
}

std::vector<ConstView> OperationTensors::inputs(const std::vector<at::Tensor>& tensors,
                                                bool is_reduced) {
  std::vector<ConstView> views;
  for (const at::Tensor& tensor : tensors) views.push_back(input(tensor, is_reduced));
  return views;
}

std::vector<View> OperationTensors::outputs(const std::vector<at::Tensor>& tensors,
                                            bool is_reduced) {
  std::vector<View> views;
  for (const at::Tensor& tensor : tensors) views.push_back(output(tensor, is_reduced));
  return views;
}

void OperationTensors::write_back() {
  for (const Copy& copy : copies_) {
    // This may be another thread than the one that is in torch.inference_mode().
    const c10::InferenceMode mode(copy.target.is_inference());
    const at::NoGradGuard no_grad;
    copy.target.copy_(copy.block);
  }
  copies_.clear();
}

}  // namespace stretto::c10d_backend
