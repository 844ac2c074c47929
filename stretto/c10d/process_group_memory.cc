// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Memory of a group that the other ranks of this host have mapped.

#include <malloc.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <fmt/format.h>

#include "stretto/base/environment.h"
#include "stretto/base/stream_guard.h"
#include "stretto/c10d/errors.h"
#include "stretto/c10d/process_group.h"
#include "stretto/torch_device/device_allocation.h"
#include "stretto/torch_device/streams.h"

namespace stretto::c10d_backend {
namespace {

// Note [freed memory]
//
// When more than a threshold is free at the end of its heap, glibc returns that memory to the
// kernel, and gets it anew page by page. In a step of training, this happens to each gradient that
// DistributedDataParallel has copied to its bucket. Buckets in the heap happen to prevent it; ours
// lie elsewhere. A step of ResNet-18 then takes 20 ms more, of 50. So the threshold is raised by as
// much as we have registered, beyond what glibc's thresholds grow to by themselves. Thresholds that
// a user has set stay.
constexpr int kMmapThresholdBytes = 32 * 1024 * 1024;

void keep_freed_memory([[maybe_unused]] uint64_t bytes) {
#ifdef __GLIBC__
  static const bool is_set = [] {
    const Environment& variables = process_environment();
    return variables.get("MALLOC_TRIM_THRESHOLD_") || variables.get("MALLOC_MMAP_THRESHOLD_") ||
           variables.get("GLIBC_TUNABLES");
  }();
  if (is_set) return;
  const uint64_t threshold = 2 * kMmapThresholdBytes + bytes;
  ::mallopt(M_MMAP_THRESHOLD, kMmapThresholdBytes);
  ::mallopt(M_TRIM_THRESHOLD,
            static_cast<int>(std::min<uint64_t>(threshold, std::numeric_limits<int>::max())));
#endif
}

std::atomic<uint64_t> registered_bytes = 0;

// Registered memory of the host or a device, which registered_bytes counts while it lives.
struct Registered {
  Registered(Communicator& communicator, std::size_t bytes, c10::Device of)
      : device(of), memory(for_torch([&] {
          return of.is_cpu() ? communicator.allocate_bytes(bytes)
                             : allocate_on(of, communicator, bytes);
        })) {
    const uint64_t all = registered_bytes += bytes;
    if (device.is_cpu()) keep_freed_memory(all);
  }
  ~Registered() { registered_bytes -= memory.bytes().size(); }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;
  // Names the caller's current stream, so that memory of a device is freed later if a graph
  // captures it.
  static void free(void* owned) {
    std::unique_ptr<Registered> freed(static_cast<Registered*>(owned));
    const c10::Device on = freed->device;
    const StreamGuard of_caller(on.is_cpu() ? nullptr : current_stream(on).native_handle());
    freed.reset();
  }

  const c10::Device device;
  const Memory memory;
};

}  // namespace

bool ProcessGroupStretto::supportsTensorAlloc(c10::DeviceIndex device) {
  return device < 0 || communicator()->device() == device;
}

at::Tensor ProcessGroupStretto::allocateTensor(long size, at::TensorOptions options) {  // NOLINT
  TORCH_CHECK_VALUE(size >= 0, "a tensor of ", size, " elements");
  // A bucket of complex parameters has real numbers, twice as many. PyTorch's reducer makes it so
  // when it allocates the bucket itself; here it asks for complex numbers, and takes what it gets.
  const at::ScalarType type = c10::typeMetaToScalarType(options.dtype());
  if (c10::isComplexType(type)) {
    return allocateTensor(2 * size, options.dtype(toRealValueType(type)));
  }
  const std::shared_ptr<Communicator> alive = communicator();
  c10::Device device = options.device();
  if (!device.is_cpu()) {
    const std::optional<int> number = alive->device();
    TORCH_CHECK_VALUE(number && has_addresses(device), "stretto allocates memory of the CPU",
                      number ? fmt::format(" and of device {}", *number) : "", ", not of ", device);
    if (!device.has_index()) device.set_index(static_cast<c10::DeviceIndex>(*number));
  }
  const std::size_t bytes = static_cast<std::size_t>(size) * options.dtype().itemsize();
  auto owned = std::make_unique<Registered>(*alive, bytes, device);
  void* const data = owned->memory.bytes().data();
  // Some communication hooks make their bucket larger; it then moves to memory of PyTorch's
  // allocator.
  return at::for_blob(data, {size})
      .context(owned.release(), &Registered::free)
      .options(options.device(device))
      .target_device(device)
      .resizeable_storage()
      .allocator(c10::GetAllocator(device.type()))
      .make_tensor();
}

std::unordered_map<std::string, uint64_t> ProcessGroupStretto::getMemoryStats() {
  return {{"registered_bytes", registered_bytes}};
}

}  // namespace stretto::c10d_backend
