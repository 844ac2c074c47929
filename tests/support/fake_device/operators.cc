// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The basic operators of the device: tensors, views of them, and copies. All other operators are
// PyTorch's for the CPU and work on copies: they wait for the current stream to read, and write
// later.

#include <utility>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "tests/support/fake_device/device.h"

namespace stretto::fake_device {
namespace {

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::OptionalDeviceGuard guard_of(const std::optional<c10::Device>& device) {
  return device && device->has_index() ? c10::OptionalDeviceGuard(device)
                                       : c10::OptionalDeviceGuard();
}

at::Tensor empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                 std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>,
                 std::optional<c10::MemoryFormat> format) {
  const auto guard = guard_of(device);
  return at::detail::empty_generic(sizes, c10::GetAllocator(kType), kKeys,
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                         std::optional<c10::Device> device, std::optional<bool>) {
  const auto guard = guard_of(device);
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(kType), kKeys,
                                           c10::dtype_or_default(dtype));
}

// Returns a tensor of the same elements at the addresses that the double's streams use. It does not
// keep them alive.
at::Tensor reached(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  return at::from_blob(reach(tensor.data_ptr()), tensor.sizes(), tensor.strides(),
                       tensor.options().device(at::kCPU));
}

// A non-blocking copy also accesses host memory when the stream comes to it.
void copy_later(const at::Tensor& from, const at::Tensor& to) {
  const auto place = [](const at::Tensor& tensor) {
    return tensor.device().is_cpu() ? at::from_blob(tensor.data_ptr(), tensor.sizes(),
                                                    tensor.strides(), tensor.options())
                                    : reached(tensor);
  };
  const at::Tensor& there = from.device().is_cpu() ? to : from;
  enqueue(current_stream(there.device()),
          [source = place(from), target = place(to)] { target.copy_(source); });
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (non_blocking && (from.device().is_cpu() || to.device().is_cpu())) {
    copy_later(from, to);
    return to;
  }
  if (to.device().is_cpu()) {
    synchronize(current_stream(from.device()));
    to.copy_(reached(from));
    return to;
  }
  TORCH_CHECK(from.device().is_cpu() || from.device() == to.device(),
              "the double copies nothing from device to device");
  // The caller may change the host memory after the call.
  const at::Tensor source = from.device().is_cpu() ? from.clone() : reached(from);
  enqueue(current_stream(to.device()), [source, target = reached(to)] { target.copy_(source); });
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  synchronize(current_stream(tensor.device()));
  return reached(tensor).item();
}

at::Tensor as_strided(const at::Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, sizes, strides, offset);
}

at::Tensor view(const at::Tensor& tensor, c10::IntArrayRef sizes) {
  return at::native::view(tensor, sizes);
}

at::Tensor reshape_alias(const at::Tensor& tensor, c10::IntArrayRef sizes,
                         c10::IntArrayRef strides) {
  return at::native::_reshape_alias(tensor, sizes, strides);
}

const at::Tensor& resize(const at::Tensor& tensor, c10::IntArrayRef sizes,
                         std::optional<c10::MemoryFormat> format) {
  return at::native::resize_(tensor, sizes, format);
}

// PyTorch's archives read tensors with this operator.
at::Tensor& set_storage(at::Tensor& tensor, at::Storage storage, int64_t offset,
                        c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  at::TensorImpl* const implementation = tensor.unsafeGetTensorImpl();
  implementation->set_storage_keep_dtype(std::move(storage));
  implementation->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("as_strided", &as_strided);
  library.impl("view", &view);
  library.impl("view_as_complex", &at::native::view_as_complex);
  library.impl("view_as_real", &at::native::view_as_real);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("resize_", &resize);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
}

// As on a GPU, autocast uses 16 bits where that is allowed.
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m){KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

}  // namespace
}  // namespace stretto::fake_device
