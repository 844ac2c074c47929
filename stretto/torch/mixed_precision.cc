// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/mixed_precision.h"

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "stretto/base/refuse.h"
#include "stretto/torch/logging_data.h"
#include "stretto/torch/parameters.h"
#include "stretto/torch/sync_batch_norm.h"
#include "stretto/torch_device/scalar_type.h"

namespace stretto::ddp {
namespace {

[[noreturn]] void refuse_dtype(const char* option, DType dtype, const char* supported) {
  refuse("mixed_precision.{} is {}; supported are {}", option, name(dtype), supported);
}

torch::ScalarType scalar_type(const char* option, DType dtype) {
  constexpr DType kSupported[] = {DType::f16, DType::bf16, DType::f32, DType::f64};
  if (std::ranges::find(kSupported, dtype) == std::end(kSupported)) {
    refuse_dtype(option, dtype, "f16, bf16, f32 and f64");
  }
  return scalar_type_of(dtype);
}

// Adds the tensors of `module` itself if it is a batch normalisation.
void keep_of(const torch::nn::Module& module, std::unordered_set<const void*>& kept) {
  using namespace torch::nn;  // NOLINT: four of its names.
  if (!is_any_of<BatchNorm1dImpl, BatchNorm2dImpl, BatchNorm3dImpl, SyncBatchNormImpl>(module)) {
    return;
  }
  for (const auto& tensor : module.parameters(/*recurse=*/false)) {
    kept.insert(tensor.unsafeGetTensorImpl());
  }
  for (const auto& tensor : module.buffers(/*recurse=*/false)) {
    kept.insert(tensor.unsafeGetTensorImpl());
  }
}

}  // namespace

LowPrecision::LowPrecision(const MixedPrecision& options,
                           const std::vector<NamedTensor>& parameters)
    : cast_inputs_(options.cast_forward_inputs) {
  if (!options.parameter_dtype) return;
  dtype_ = scalar_type("parameter_dtype", *options.parameter_dtype);
  for (const auto& [name, tensor] : parameters) {
    if (tensor.is_floating_point()) copies_.push_back({tensor, {}, {}});
  }
}

void LowPrecision::enter() {
  if (!is_on() || entered_) return;
  // Tensors that are made in inference mode could not be changed outside of it.
  const c10::InferenceMode no_inference(false);
  const torch::NoGradGuard no_grad;
  entered_ = true;
  for (auto& [parameter, full, low] : copies_) {
    full = parameter.detach();
    if (low.defined() && low.sizes() == full.sizes() && low.strides() == full.strides()) {
      low.copy_(full);
    } else {
      low = full.to(*dtype_, /*non_blocking=*/false, /*copy=*/true);
    }
    parameter.set_data(low);
  }
}

void LowPrecision::leave() {
  if (!entered_) return;
  entered_ = false;
  for (auto& [parameter, full, low] : copies_) {
    if (full.defined()) parameter.set_data(std::exchange(full, {}));
  }
}

// Compares bits, since NaN is not equal to itself. The tensors' versions do not tell: optimizers of
// libtorch write through data(), which leaves versions as they are.
void LowPrecision::refuse_lost_changes() {
  const torch::NoGradGuard no_grad;
  const auto bits = [](const torch::Tensor& tensor) {
    const auto size = tensor.element_size();
    return tensor.view(size == 2 ? torch::kShort : size == 4 ? torch::kInt : torch::kLong);
  };
  for (const Copy& copy : copies_) {
    if (!entered_ || torch::equal(bits(copy.parameter), bits(copy.full.to(*dtype_)))) continue;
    leave();
    refuse(
        "parameters were changed between a forward pass and its backward pass, when they were "
        "copies in mixed_precision.parameter_dtype: the change is lost. Call optimizer.step() "
        "before forward(), and evaluate under torch::NoGradGuard");
  }
}

torch::Tensor LowPrecision::cast(const torch::Tensor& tensor) const {
  const bool casts = casts_inputs() && tensor.defined() && tensor.is_floating_point();
  return casts ? tensor.to(*dtype_) : tensor;
}

std::vector<NamedTensor> without_batch_norm(const MixedPrecision& options,
                                            const torch::nn::Module& module,
                                            const std::vector<NamedTensor>& named) {
  // libtorch's BatchNorm takes inputs of f16 and bf16 with parameters of f32, and no other mixture.
  const auto dtype = options.parameter_dtype;
  if (dtype == DType::f32 || dtype == DType::f64) return named;
  std::unordered_set<const void*> kept;
  for (const auto& part : module.modules(/*include_self=*/false)) keep_of(*part, kept);
  keep_of(module, kept);
  std::vector<NamedTensor> others;
  for (const NamedTensor& item : named) {
    const bool is_kept = item.tensor.scalar_type() == torch::kFloat &&
                         kept.contains(item.tensor.unsafeGetTensorImpl());
    if (!is_kept) others.push_back(item);
  }
  return others;
}

std::shared_ptr<CommunicationHook> with_reduce_dtype(const MixedPrecision& options,
                                                     std::shared_ptr<CommunicationHook> hook) {
  // Codecs take gradients of f32, whatever the parameter_dtype is.
  const DType own = hook->last_compression() != nullptr
                        ? DType::f32
                        : options.parameter_dtype.value_or(DType::f32);
  const DType dtype = options.reduce_dtype.value_or(own);
  switch (dtype) {
    case DType::f16:
      return std::make_shared<F16Reduction>(std::move(hook));
    case DType::bf16:
      return std::make_shared<Bf16Reduction>(std::move(hook));
    case DType::f32:
      return hook;
    default:
      if (!options.reduce_dtype && dtype == DType::f64) return hook;
      refuse_dtype("reduce_dtype", dtype, "f16, bf16 and f32");
  }
}

void convert_buffers(const MixedPrecision& options, const std::vector<NamedTensor>& buffers) {
  if (!options.buffer_dtype) return;
  const torch::ScalarType dtype = scalar_type("buffer_dtype", *options.buffer_dtype);
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : buffers) {
    torch::Tensor buffer = tensor;
    if (buffer.is_floating_point()) buffer.set_data(buffer.to(dtype));
  }
}

// Exchanges the data without copying them: a copy would write tensors that a forward pass has saved
// for backward, and autograd would refuse that.
void FullPrecision::exchange() {
  if (!precision_.entered_) return;
  for (auto& [parameter, full, low] : precision_.copies_) {
    const torch::Tensor now = parameter.detach();
    parameter.set_data(std::exchange(full, now));
  }
}

ForwardScope::ForwardScope(LowPrecision& precision, StepTimer* timer)
    : precision_(precision),
      timer_(timer),
      enters_(precision.is_on() && !precision.entered()),
      exceptions_when_made_(std::uncaught_exceptions()) {
  precision_.enter();
}

ForwardScope::~ForwardScope() {
  if (timer_ != nullptr) timer_->forward_ends();
  const bool thrown = std::uncaught_exceptions() > exceptions_when_made_;
  if (enters_ && (thrown || !torch::GradMode::is_enabled())) precision_.leave();
}

}  // namespace stretto::ddp
