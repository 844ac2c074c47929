// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/c10d/operation_tensors.h"

#include <optional>

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <fmt/format.h>

#include "stretto/base/round_up.h"
#include "stretto/c10d/errors.h"
#include "stretto/torch_device/scalar_type.h"
#include "stretto/torch_device/streams.h"

namespace stretto::c10d_backend {
namespace {

// Why `communicator`, which may be null, cannot reach a tensor that is not on the CPU; else empty.
std::string problem_with_device(const at::Tensor& tensor, const Communicator* communicator) {
  const std::string place = tensor.device().str();
  const std::optional<int> device = communicator == nullptr ? std::nullopt : communicator->device();
  if (!device) {
    return fmt::format(
        "this tensor is on {}, where this group neither works nor copies from; copy it to the CPU, "
        "or give {} a backend of its own, as in init_process_group(\"cpu:stretto,cuda:nccl\")",
        place, c10::DeviceTypeName(tensor.device().type(), true));
  }
  // A tensor without elements may have no memory at all.
  if (tensor.numel() > 0 && !communicator->device_of(tensor.const_data_ptr())) {
    return fmt::format(
        "this tensor is on {}, which is no memory that this group reaches; copy it to the CPU, or "
        "to the GPU of this rank",
        place);
  }
  if (tensor.device().index() != *device) {
    return fmt::format(
        "this tensor is on {0}, and this group works on device {1} of this process; put the tensor "
        "there, or start this rank with STRETTO_DEVICE={2}",
        place, *device, static_cast<int>(tensor.device().index()));
  }
  return {};
}

View view_of(const at::Tensor& block, OperationTensors::Use use) {
  auto* const data = static_cast<std::byte*>(block.data_ptr());
  const auto count = static_cast<std::size_t>(block.numel());
  // Other types can be moved, as bytes.
  if (const std::optional<DType> dtype = dtype_of_scalar_type(block.scalar_type()))
    return {data, count, *dtype};
  if (use == OperationTensors::Use::reduced) {
    throw_for_torch(status_of(
        StatusCode::invalid_argument, "tensors of type {} can be moved, but not reduced; {}",
        c10::toString(block.scalar_type()), "convert them to float32 or another type before"));
  }
  return {data, count * block.element_size(), DType::u8};
}

// Conjugates or negates first: the host would do so after a copy that the device has not made yet.
at::Tensor begin_copy(const at::Tensor& block, const at::Tensor& tensor) {
  return block.copy_(tensor.resolve_conj().resolve_neg(), /*non_blocking=*/true);
}

}  // namespace

void OperationTensors::check(const at::Tensor& tensor) {
  std::string problem;
  if (!tensor.defined()) {
    problem = "a tensor is undefined";
  } else if (tensor.layout() != at::kStrided) {
    problem =
        "only all_reduce takes sparse tensors, and only COO ones; make this one dense: to_dense()";
  } else if (!tensor.device().is_cpu() && !(are_by_host() && has_addresses(tensor.device()))) {
    problem = problem_with_device(tensor, communicator_.lock().get());
  }
  if (problem.empty() && device_.value_or(tensor.device()) != tensor.device()) {
    problem = fmt::format("some tensors of this operation are on {} and some on {}", device_->str(),
                          tensor.device().str());
  }
  if (!problem.empty()) throw_for_torch({StatusCode::invalid_argument, problem});
  device_ = tensor.device();
  if (tensor.device().is_cpu() || stream_) return;
  stream_ = current_stream(tensor.device());
  if (blocks_ == nullptr || !is_captured(*stream_)) return;
  throw_for_torch({StatusCode::invalid_argument,
                   "the current stream is captured by a graph of the device, which can hold "
                   "collectives by NCCL only, not what the host takes part in. Capture what comes "
                   "before and what comes behind it as two graphs"});
}

ConstView OperationTensors::describe(const at::Tensor& tensor) {
  check(tensor);
  return view_of(tensor, Use::moved);
}

View OperationTensors::input(const at::Tensor& tensor) {
  check(tensor);
  const at::NoGradGuard no_grad;
  // Kept even if it is copied: its memory may belong to another stream than the one that copies it.
  kept_.push_back(tensor);
  if (!is_taken_as_it_is(tensor)) kept_.push_back(begin_copy(make_block(tensor), tensor));
  return view(kept_.back());
}

View OperationTensors::view(const at::Tensor& block) const {
  View found = view_of(block, use_);
  if (found.count == 0 && are_mapped()) {
    found.data = for_torch([&] { return blocks_->take(1, *device_); }).get();
  }
  return found;
}

View OperationTensors::writable(const at::Tensor& tensor, bool is_read) {
  check(tensor);
  if (is_taken_as_it_is(tensor)) {
    kept_.push_back(tensor);
    return view(tensor);
  }
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    throw_for_torch({StatusCode::invalid_argument,
                     "an output has several elements in one place of its memory, as expand() makes "
                     "them; use clone() of it"});
  }
  const at::NoGradGuard no_grad;
  const at::Tensor block = make_block(tensor);
  if (is_read) begin_copy(block, tensor);
  copies_.push_back({tensor, block});
  return view(block);
}

bool OperationTensors::is_of_blocks(const at::Tensor& tensor) const {
  return blocks_ != nullptr && !tensor.device().is_cpu() && tensor.numel() > 0;
}

bool OperationTensors::is_taken_as_it_is(const at::Tensor& tensor) const {
  if (!tensor.is_contiguous() || tensor.is_conj() || tensor.is_neg()) return false;
  if (!is_of_blocks(tensor)) return true;
  const std::shared_ptr<const Communicator> alive = communicator_.lock();
  return list_block_ == nullptr && !are_by_host() && alive != nullptr &&
         alive->is_device_memory(tensor.const_data_ptr());
}

at::Tensor OperationTensors::make_block(const at::Tensor& tensor) {
  if (!is_of_blocks(tensor)) return at::empty(tensor.sizes(), tensor.options());
  std::shared_ptr<std::byte> block = list_block_;
  std::size_t first = 0;
  if (block != nullptr) {
    first = round_up(list_bytes_, tensor.element_size());
    list_bytes_ = first + tensor.nbytes();
  } else {
    block = for_torch([&] { return blocks_->take(tensor.nbytes(), tensor.device()); });
  }
  const c10::Device place = are_by_host() ? c10::Device(c10::kCPU) : tensor.device();
  return at::for_blob(block.get() + first, tensor.sizes())
      .deleter([block](void*) {})
      .options(tensor.options().device(place))
      .target_device(place)
      .make_tensor();
}

void OperationTensors::begin_list(const std::vector<at::Tensor>& tensors) {
  if (blocks_ == nullptr) return;
  const at::Tensor* copied = nullptr;
  const std::byte* end = nullptr;
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    check(tensor);
    if (!is_of_blocks(tensor)) continue;
    const auto* const data = static_cast<const std::byte*>(tensor.const_data_ptr());
    if (!is_taken_as_it_is(tensor) || (end != nullptr && data != end)) copied = &tensor;
    end = data + tensor.nbytes();
    bytes = round_up(bytes, tensor.element_size()) + tensor.nbytes();
  }
  if (copied == nullptr) return;
  list_block_ = for_torch([&] { return blocks_->take(bytes, copied->device()); });
  list_bytes_ = 0;
}

View OperationTensors::output(const at::Tensor& tensor) { return writable(tensor, false); }

View OperationTensors::in_place(const at::Tensor& tensor) { return writable(tensor, true); }

std::vector<ConstView> OperationTensors::inputs(const std::vector<at::Tensor>& tensors) {
  std::vector<ConstView> views;
  begin_list(tensors);
  for (const at::Tensor& tensor : tensors) views.push_back(input(tensor));
  end_list();
  return views;
}

std::vector<View> OperationTensors::outputs(const std::vector<at::Tensor>& tensors) {
  std::vector<View> views;
  begin_list(tensors);
  for (const at::Tensor& tensor : tensors) views.push_back(output(tensor));
  end_list();
  return views;
}

void OperationTensors::wait_for_caller() {
  if (stream_ && are_by_host()) wait_for(*stream_);
}

void OperationTensors::use_on(const c10::Stream& stream) const {
  const auto* const device = c10::impl::getDeviceGuardImpl(stream.device_type());
  for (const at::Tensor& tensor : kept_) {
    device->recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
  }
}

std::optional<c10::Stream> OperationTensors::copying_stream() const {
  return copies_.empty() ? std::nullopt : stream_;
}

void OperationTensors::write_back() {
  const c10::OptionalStreamGuard on_stream(stream_);  // And its device.
  for (const Copy& copy : copies_) {
    // This may be another thread than the one that is in torch.inference_mode().
    const c10::InferenceMode mode(copy.target.is_inference());
    const at::NoGradGuard no_grad;
    copy.target.copy_(copy.block, /*non_blocking=*/true);
  }
  copies_.clear();
}

}  // namespace stretto::c10d_backend
