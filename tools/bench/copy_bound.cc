// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/copy_bound.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tools/bench/huge_memory.h"

namespace stretto::bench {
namespace {

// The number of copies in a sample: enough to take much longer than reading the clock.
std::size_t repetitions(std::size_t bytes) { return std::max<std::size_t>(1, 65536 / bytes); }

}  // namespace

#if defined(__x86_64__)
namespace {

__attribute__((target("avx"))) void stream_lines(std::byte* to, const std::byte* from,
                                                 std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 64) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at + 32), high);
  }
  _mm_sfence();
}

}  // namespace

void copy_past_cache(std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::size_t head = (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64;
  if (bytes < 4096 || !__builtin_cpu_supports("avx")) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::memcpy(to, from, head);
  const std::size_t lines = (bytes - head) / 64 * 64;
  stream_lines(to + head, from + head, lines);
  std::memcpy(to + head + lines, from + head + lines, bytes - head - lines);
}
#else
void copy_past_cache(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}
#endif

CopyBound::CopyBound(std::size_t bytes)
    : bytes_(bytes), from_(allocate_huge(bytes)), to_(allocate_huge(bytes)) {
  std::memset(from_.get(), 1, bytes);  // Some processors write zeros over zeros at less cost.
}

double CopyBound::copy_us(Coordinator& coordinator, bool non_temporal) {
  const std::size_t times = repetitions(bytes_);
  coordinator.barrier();
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < times; ++i) {
    if (non_temporal) {
      copy_past_cache(to_.get(), from_.get(), bytes_);
    } else {
      std::memcpy(to_.get(), from_.get(), bytes_);
    }
    // Nobody reads the copies, so without this the compiler could drop all but one.
    asm volatile("" : : "r"(to_.get()) : "memory");
  }
  return detail::elapsed_us(start) / static_cast<double>(times);
}

void CopyBound::sample(Coordinator& coordinator) {
  // The first copy of each kind finds the caches as the all-reduce has left them.
  constexpr int kSamples = 3;
  for (int i = 0; i <= kSamples; ++i) {
    const double time_us = copy_us(coordinator, false);
    if (i > 0) plain_us_.push_back(time_us);
  }
  for (int i = 0; i <= kSamples; ++i) {
    const double time_us = copy_us(coordinator, true);
    if (i > 0) non_temporal_us_.push_back(time_us);
  }
}

double CopyBound::best_us(Coordinator& coordinator) {
  coordinator.maxima(plain_us_);
  coordinator.maxima(non_temporal_us_);
  return std::min(median(plain_us_), median(non_temporal_us_));
}

}  // namespace stretto::bench
