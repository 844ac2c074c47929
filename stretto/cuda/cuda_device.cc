// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/cuda/cuda_device.h"

#include <algorithm>

#include "stretto/base/round_up.h"
#include "stretto/cuda/visit_reduction.h"

namespace stretto::cuda {
namespace {

constexpr int kFileDescriptor = 1;  // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.

bool has_kernel(const OperationDescriptor& operation) {
  return visit_reduction(operation.dtype, operation.dtype, operation.op, [](auto, auto, int) {});
}

}  // namespace

Result<std::unique_ptr<execution::KernelQueue>> CudaDevice::make_queue() {
  STRETTO_ASSIGN_OR_RETURN(StreamHandle stream, driver_->make_stream());
  return std::unique_ptr<execution::KernelQueue>(
      std::make_unique<CudaQueue>(driver_, stream, kernels_.reduce, marks_));
}

// Refuses a captured stream: whenever an operation runs, ranks tell each other through the host
// that they have come.
Result<bool> CudaDevice::is_captured(void* stream) {
  STRETTO_RETURN_IF_ERROR(driver_->check_no_capture(static_cast<StreamHandle>(stream)));
  return false;
}

Result<Mark> CudaDevice::mark(void* stream, bool /*is_captured*/) {
  STRETTO_ASSIGN_OR_RETURN(const int number, marks_->add(static_cast<StreamHandle>(stream)));
  return Mark{number};
}

Result<std::shared_ptr<void>> CudaDevice::pin(ByteSpan bytes) { return cuda::pin(driver_, bytes); }

// Maps the memory of `handle`, and releases `handle`: mapped memory stays.
Result<std::shared_ptr<std::byte>> CudaDevice::map(std::uint64_t handle, std::size_t bytes) const {
  const DriverInterface& call = driver_->call();
  std::uint64_t place = 0;
  Status status =
      driver_->status_of_call("cuMemAddressReserve", call.address_reserve(&place, bytes, 0, 0, 0));
  if (status.ok()) {
    status = driver_->status_of_call("cuMemMap", call.memory_map(place, bytes, 0, handle, 0));
    if (!status.ok()) (void)call.address_free(place, bytes);
  }
  (void)call.memory_release(handle);
  STRETTO_RETURN_IF_ERROR(status);
  const std::shared_ptr<std::byte> data(
      reinterpret_cast<std::byte*>(place), [driver = driver_, bytes](std::byte* mapped) {
        const Driver::Current there(*driver);
        (void)driver->call().memory_unmap(address_of(mapped), bytes);
        (void)driver->call().address_free(address_of(mapped), bytes);
      });
  const MemoryAccess access{.location = {.number = driver_->device()}};
  STRETTO_RETURN_IF_ERROR(
      driver_->status_of_call("cuMemSetAccess", call.memory_set_access(place, bytes, &access, 1)));
  return data;
}

Result<transport::MappableMemory::Mapping> CudaDevice::create(std::size_t bytes) {
  STRETTO_RETURN_IF_ERROR(driver_->check_no_capture());
  allocations_->frees.free_all();
  const Driver::Current current(*driver_);
  const DriverInterface& call = driver_->call();
  const MemoryProperties like{.location = {.number = driver_->device()}};
  std::size_t unit = 1;
  STRETTO_RETURN_IF_ERROR(driver_->status_of_call("cuMemGetAllocationGranularity",
                                                  call.memory_granularity(&unit, &like, 0)));
  const std::size_t whole = round_up(std::max<std::size_t>(bytes, 1), unit);
  std::uint64_t handle = 0;
  STRETTO_RETURN_IF_ERROR(
      driver_->status_of_call("cuMemCreate", call.memory_create(&handle, whole, &like, 0)));
  int descriptor = -1;
  const Status exported = driver_->status_of_call(
      "cuMemExportToShareableHandle", call.memory_export(&descriptor, handle, kFileDescriptor, 0));
  Mapping mapping{.descriptor = FileDescriptor(descriptor), .data = nullptr, .bytes = whole};
  STRETTO_ASSIGN_OR_RETURN(auto data, map(handle, whole));
  STRETTO_RETURN_IF_ERROR(exported);
  STRETTO_RETURN_IF_ERROR(driver_->clear(data.get(), whole));
  mapping.data = own(std::move(data), whole);
  return mapping;
}

// Lists the memory while it lives, so that operations take it.
std::shared_ptr<std::byte> CudaDevice::own(std::shared_ptr<std::byte> data,
                                           std::size_t bytes) const {
  std::uint32_t number = 0;
  {
    const MutexLock held(allocations_->mutex);
    number = allocations_->next++;
    allocations_->table.insert(number, {data.get(), bytes});
  }
  std::byte* const begin = data.get();
  return {begin,
          [allocations = allocations_, number, mapped = std::move(data)](std::byte*) mutable {
            {
              const MutexLock held(allocations->mutex);
              allocations->table.erase(number);
            }
            allocations->frees.add(std::move(mapped));
          }};
}

Result<transport::MappableMemory::Mapping> CudaDevice::open(const FileDescriptor& descriptor,
                                                            std::size_t bytes) {
  if (!descriptor.valid()) {
    return status_of(StatusCode::protocol, "memory of a device came without its descriptor");
  }
  const Driver::Current current(*driver_);
  std::uint64_t handle = 0;
  void* const number = reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor.get()));
  STRETTO_RETURN_IF_ERROR(
      driver_->status_of_call("cuMemImportFromShareableHandle",
                              driver_->call().memory_import(&handle, number, kFileDescriptor)));
  STRETTO_ASSIGN_OR_RETURN(auto data, map(handle, bytes));
  return Mapping{.descriptor = FileDescriptor(), .data = std::move(data), .bytes = bytes};
}

bool CudaDevice::takes(const void* data) const {
  const MutexLock held(allocations_->mutex);
  // One byte of it: memory that begins where an allocation ends is another's.
  return allocations_->table.locate(data, 1).valid();
}

const char* CudaDevice::refusal(const OperationDescriptor& operation,
                                const BufferParts& /*parts*/) const {
  if (!reduces(operation.collective) || has_kernel(operation)) return "";
  return "has no kernel for such a reduction of this dtype; copy the data to memory of the host";
}

}  // namespace stretto::cuda
