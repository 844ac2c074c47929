// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/allocation/counter.h"

#include <malloc.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>
#include <string_view>

namespace {

std::atomic<bool> counting{false};
std::atomic<long> count{0};
std::atomic<long> bytes{0};
std::atomic<const char*> failing_thread{nullptr};
std::atomic<long> allocations_left{0};  // Up to the last that fails, on that thread.
std::atomic<long> failures_wanted{0};

bool fails() {
  const char* const thread = failing_thread.load(std::memory_order_relaxed);
  if (thread == nullptr) return false;
  std::array<char, 16> own{};
  ::pthread_getname_np(::pthread_self(), own.data(), own.size());
  if (std::string_view(own.data()) != thread) return false;
  const long left = allocations_left.fetch_sub(1, std::memory_order_relaxed) - 1;
  return left >= 0 && left < failures_wanted.load(std::memory_order_relaxed);
}

void* counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  if (fails()) {
    std::free(memory);
    throw std::bad_alloc();
  }
  if (counting.load(std::memory_order_relaxed)) count.fetch_add(1, std::memory_order_relaxed);
  bytes.fetch_add(static_cast<long>(::malloc_usable_size(memory)), std::memory_order_relaxed);
  return memory;
}

void release(void* memory) {
  if (memory == nullptr) return;
  bytes.fetch_sub(static_cast<long>(::malloc_usable_size(memory)), std::memory_order_relaxed);
  std::free(memory);
}

void* aligned(std::size_t size, std::align_val_t alignment) {
  const auto multiple = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(multiple, (size + multiple - 1) / multiple * multiple);
}

}  // namespace

// All forms are here: a sanitizer brings its own for missing ones, and those would not match.
void* operator new(std::size_t size) { return counted(std::malloc(size == 0 ? 1 : size)); }
void* operator new[](std::size_t size) { return operator new(size); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return counted(aligned(size, alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return operator new(size, alignment);
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](std::size_t size, const std::nothrow_t& nothrow) noexcept {
  return operator new(size, nothrow);
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { release(memory); }

namespace stretto::testing {

AllocationCount::AllocationCount() {
  count = 0;
  counting = true;
}

AllocationCount::~AllocationCount() { counting = false; }

long AllocationCount::value() const { return count; }

AllocationFailure::AllocationFailure(const char* thread, long number, long failures) {
  failures_wanted = failures;
  allocations_left = number + failures - 1;
  failing_thread = thread;
}

AllocationFailure::~AllocationFailure() { failing_thread = nullptr; }

bool AllocationFailure::has_happened() const { return allocations_left <= 0; }

long bytes_in_use() { return bytes; }

}  // namespace stretto::testing
