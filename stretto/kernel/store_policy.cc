// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/kernel/store_policy.h"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <string_view>

#include "stretto/base/file_descriptor.h"

namespace stretto::kernel {
namespace {

constexpr std::size_t kAssumedCacheBytes = std::size_t{32} << 20;

// "32768K" as bytes; 0 if the file is not there or holds something else.
std::size_t cache_bytes_in(const char* path) {
  const FileDescriptor file(::open(path, O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return 0;
  char text[32];
  const auto length = ::read(file.get(), text, sizeof(text));
  if (length <= 0) return 0;
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text, text + length, number);
  if (error != std::errc()) return 0;
  const char unit = end < text + length ? *end : '\0';
  if (unit == 'K') return number << 10;
  if (unit == 'M') return number << 20;
  return number;
}

// The C library's own number comes from CPUID and, in a virtual machine, can be that of the whole
// socket; the kernel's is what the processors of this machine share. So the kernel is asked first.
std::size_t read_last_level_cache() {
  constexpr const char* kLargestFirst[] = {
      "/sys/devices/system/cpu/cpu0/cache/index4/size",
      "/sys/devices/system/cpu/cpu0/cache/index3/size",
      "/sys/devices/system/cpu/cpu0/cache/index2/size",
  };
  for (const char* path : kLargestFirst) {
    if (const std::size_t bytes = cache_bytes_in(path); bytes > 0) return bytes;
  }
#ifdef _SC_LEVEL3_CACHE_SIZE
  if (const long bytes = ::sysconf(_SC_LEVEL3_CACHE_SIZE); bytes > 0) {
    return static_cast<std::size_t>(bytes);
  }
#endif
  return kAssumedCacheBytes;
}

}  // namespace

std::size_t last_level_cache_bytes() {
  static const std::size_t bytes = read_last_level_cache();
  return bytes;
}

// Measured with 32 MiB of last-level cache, to buffers that the call does not read: from half of it
// on, non-temporal stores are 1.5 to 2.5 times as fast, and still 1.1 to 2 times if the same core
// reads the result at once. Below, they gain little alone and can lose much where another core
// reads next. Half, also, because the ranks of a host share the cache.
bool is_non_temporal(Store store, std::size_t bytes) {
  if (store == Store::automatic) return bytes > last_level_cache_bytes() / 2;
  return store == Store::non_temporal;
}

}  // namespace stretto::kernel
