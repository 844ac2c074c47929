// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/c10d/ddp_comm_hook.h"

#include <exception>
#include <utility>

#include <ATen/ATen.h>

#include "stretto/base/log.h"
#include "stretto/c10d/errors.h"
#include "stretto/reducer/agreement.h"
#include "stretto/reducer/bucket_memory.h"
#include "stretto/torch_device/device_allocation.h"
#include "stretto/torch_device/device_compression.h"
#include "stretto/torch_device/gradient_description.h"
#include "stretto/torch_device/streams.h"

namespace stretto::c10d_backend {
namespace {

// The device of all parameters; nothing if there are several.
std::optional<at::Device> device_of(const Tensors& parameters) {
  if (parameters.empty()) return at::kCPU;
  const at::Device device = parameters.front().device();
  for (const at::Tensor& parameter : parameters) {
    if (parameter.device() != device) return std::nullopt;
  }
  return device;
}

std::vector<GradientDescription> describe(const std::vector<std::string>& names,
                                          const Tensors& parameters) {
  std::vector<GradientDescription> gradients;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Device device = parameters[i].device();
    if (!device.is_cpu() && !has_addresses(device)) {
      refuse("parameter '{}' is on {}, where stretto.hooks reach no memory; move it to the CPU",
             names.at(i), device.str());
    }
    gradients.push_back(for_torch([&] { return ddp::description_of(names.at(i), parameters[i]); }));
  }
  return gradients;
}

}  // namespace

// The hook that compresses on the parameters' device; null if the host compresses.
std::shared_ptr<CommunicationHook> DdpCommHook::hook_there(
    const Communicator& communicator, std::span<const GradientDescription> gradients,
    const Tensors& parameters) const {
  const std::optional<at::Device> device = device_of(parameters);
  if (!device || device->is_cpu() || !compression_) return nullptr;
  std::shared_ptr<CommunicationHook> hook =
      ddp::DeviceCompression::make(compression_->codec, compression_->exchange, gradients, *device,
                                   communicator.size(), are_reduced_by(communicator, parameters));
  // A hook of the same kind on that device stays, with the state that it keeps there.
  const bool is_same = hook != nullptr && device == device_ && hook->name() == hook_->name();
  return is_same ? hook_ : hook;
}

// The state for the hook that replaces this one, which takes it over in attach(), together with the
// other ranks. Nothing if there is none yet, or if a failed step has left it incomplete.
std::optional<std::vector<std::byte>> DdpCommHook::what_is_kept() const {
  if (loaded_ || attached_to_ == 0) return loaded_;
  try {
    return hook_->save();
  } catch (const InvalidArgument& error) {
    log(LogLevel::warning, "what '{}' keeps begins anew: {}", hook_->name(), error.what());
    return std::nullopt;
  }
}

void DdpCommHook::attach(c10::intrusive_ptr<ProcessGroupStretto> group,
                         const std::vector<std::string>& names, const Tensors& parameters,
                         bool may_be_unused) {
  buckets_.clear();
  copies_.clear();
  const std::vector<GradientDescription> gradients = describe(names, parameters);
  group->run([&](Communicator& communicator) {
    const auto there = hook_there(communicator, gradients, parameters);
    auto hook = there;
    if (hook == nullptr) hook = device_.is_cpu() ? hook_ : make_on_host_();
    if (hook != hook_) {
      if (const auto kept = what_is_kept()) hook->load(*kept);
    }
    hook->claim(owner_, group->timeout());
    hook->attach(communicator, gradients);
    hook_ = hook;
    device_ = there != nullptr ? parameters.front().device() : at::kCPU;
    attached_to_ = communicator.serial();
  });
  loaded_.reset();
  memory_ = std::make_shared<HostBuckets>();
  if (!device_.is_cpu()) memory_ = std::make_shared<ddp::CompressedDeviceBuckets>(device_);
  may_be_unused_ = may_be_unused;
  group_ = std::move(group);
}

void DdpCommHook::agree(const c10::intrusive_ptr<ProcessGroupStretto>& group,
                        const std::string& name) const {
  group->run([&](Communicator& communicator) {
    reducer::check_same_hook(communicator, name, group->timeout());
  });
}

// The buffer itself if it is reduced where it lies, else a copy of it on the host.
at::Tensor DdpCommHook::place_of(const at::Tensor& buffer, std::size_t index) {
  if (buffer.device() == device_) return buffer;
  while (copies_.size() <= index) copies_.emplace_back();
  at::Tensor& copy = copies_[index];
  if (!copy.defined() || copy.numel() != buffer.numel() || copy.dtype() != buffer.dtype()) {
    copy = at::empty_like(buffer, at::TensorOptions(at::kCPU).pinned_memory(buffer.is_cuda()),
                          at::MemoryFormat::Contiguous);
  }
  return copy.copy_(buffer);
}

std::unique_ptr<DdpCommHook::Bucket> DdpCommHook::make_bucket(
    std::size_t index, bool is_last, const at::Tensor& buffer,
    const std::vector<std::size_t>& counts, const std::vector<std::size_t>& numbers) {
  auto bucket = std::make_unique<Bucket>(
      Bucket{.buffer = buffer, .place = place_of(buffer, index), .numbers = numbers});
  const DType dtype = for_torch([&] { return ddp::dtype_of_tensor(buffer).or_throw(); });
  const View whole(static_cast<std::byte*>(bucket->place.data_ptr()),
                   static_cast<std::size_t>(buffer.numel()), dtype);
  const bool looks = may_be_unused_ || device_.is_cpu();  // On a device the host waits for it.
  std::size_t first = 0;
  for (const std::size_t count : counts) {
    bucket->views.push_back(whole.slice(std::exchange(first, first + count), count));
    bucket->silent.push_back(looks && memory_->is_zero(bucket->views.back().span()) ? 1 : 0);
  }
  bucket->full = {.index = index,
                  .of_count = is_last ? index + 1 : index + 2,
                  .step = step_,
                  .view = whole,
                  .gradients = bucket->numbers,
                  .gradient_views = bucket->views,
                  .silent = bucket->silent,
                  .timeout = group_->timeout(),
                  .memory = memory_.get()};
  return bucket;
}

void DdpCommHook::reduce(std::size_t index, bool is_last, const at::Tensor& buffer,
                         const std::vector<std::size_t>& counts,
                         const std::vector<std::size_t>& numbers) {
  if (buffer.is_sparse()) {
    refuse(
        "a gradient is sparse, and stretto.hooks reduce dense ones; use no hook with this model: "
        "sparse gradients travel as their rows then");
  }
  if (index == 0) {
    buckets_.clear();
    ++step_;
  }
  group_->run([&](Communicator& communicator) {
    if (communicator.serial() != attached_to_) {
      refuse(
          "this hook knows the members that the process group had before reconfigure(): wrap the "
          "model again, and register a hook with that");
    }
    bool is_started = false;
    try {
      Bucket& bucket = *buckets_.emplace_back(make_bucket(index, is_last, buffer, counts, numbers));
      memory_->publish();
      bucket.work = hook_->start(communicator, bucket.full);
      is_started = true;
      if (!is_last) return;
      for (const auto& each : buckets_) {
        memory_->end(each->work).or_throw();
        hook_->finish(each->full);
        if (!each->place.is_same(each->buffer)) each->buffer.copy_(each->place);
      }
    } catch (const std::exception& error) {
      // The others wait for this bucket, or for this rank's next one. They know of what finish()
      // refuses.
      const bool is_known = is_started && dynamic_cast<const InvalidArgument*>(&error) != nullptr;
      if (!is_known && !communicator.has_failed()) communicator.abort(error.what());
      throw;
    }
  });
}

std::vector<std::byte> DdpCommHook::save() const {
  return for_torch([&] { return hook_->save(); });
}

void DdpCommHook::load(std::span<const std::byte> state) {
  for_torch([&] { hook_->load(state); });
  if (attached_to_ == 0) loaded_.emplace(state.begin(), state.end());
}

}  // namespace stretto::c10d_backend
