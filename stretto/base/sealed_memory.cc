// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/sealed_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <fmt/format.h>

#include "stretto/base/file_size_signal.h"

namespace stretto {

Result<FileDescriptor> make_sealed_memory(const char* name, std::size_t bytes) {
  FileDescriptor descriptor(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor.valid()) return system_status("memfd_create");
  const FileSizeSignalBlocked blocked;
  if (::ftruncate(descriptor.get(), static_cast<off_t>(bytes)) != 0) {
    return system_status(fmt::format("reserving {} bytes of shared memory", bytes));
  }
  if (::fcntl(descriptor.get(), F_ADD_SEALS, kMemorySeals) != 0) {
    return system_status("sealing shared memory");
  }
  return descriptor;
}

Result<std::shared_ptr<std::byte>> map_shared_memory(int descriptor, std::size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) return system_status("mmap of shared memory");
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(data),
                                    [bytes](std::byte* p) { ::munmap(p, bytes); });
}

}  // namespace stretto
