// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/sealed_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fmt/format.h>

#include "stretto/base/file_size_signal.h"

namespace stretto {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

Result<FileDescriptor> make_sealed_memory(const char* name, std::size_t bytes) {
  FileDescriptor descriptor(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor.valid()) return system_status("memfd_create");
  const FileSizeSignalBlocked blocked;
  if (::ftruncate(descriptor.get(), static_cast<off_t>(bytes)) != 0) {
    return system_status(fmt::format("reserving {} bytes of shared memory", bytes));
  }
  if (::fcntl(descriptor.get(), F_ADD_SEALS, kSeals) != 0) {
    return system_status("sealing shared memory");
  }
  return descriptor;
}

bool is_sealed_memory(int descriptor) {
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  return seals >= 0 && (seals & kSeals) == kSeals;
}

Result<std::shared_ptr<std::byte>> map_shared_memory(int descriptor, std::size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) return system_status("mmap of shared memory");
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(data),
                                    [bytes](std::byte* p) { ::munmap(p, bytes); });
}

}  // namespace stretto
