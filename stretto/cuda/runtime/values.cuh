// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>

// How kernels of codecs read values. For nvcc.
namespace stretto::cuda {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kAll = 0xFFFFFFFF;  // Lanes of a warp.

// As codec::Codec orders values.
__device__ inline unsigned magnitude(float value) { return __float_as_uint(value) & 0x7FFFFFFF; }

// The greatest `own` of the lanes of this thread's warp.
__device__ inline unsigned greatest_of_warp(unsigned own) {
  for (unsigned step = kWarp / 2; step > 0; step /= 2) {
    own = max(own, __shfl_xor_sync(kAll, own, step));
  }
  return own;
}

// Neighbouring elements that one access to memory reads or writes.
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T each[4];
};

template <class T>
bool is_aligned(const T* data) {
  return reinterpret_cast<std::uintptr_t>(data) % sizeof(Four<T>) == 0;
}

// Four neighbouring elements from element i on; those beyond the end are zero.
template <class T>
__device__ Four<T> four_at(const T* data, std::size_t i, std::size_t count, bool by_fours) {
  if (by_fours && i + 4 <= count) return *reinterpret_cast<const Four<T>*>(data + i);
  Four<T> four;
  for (int k = 0; k < 4; ++k) four.each[k] = i + k < count ? data[i + k] : T{};
  return four;
}
template <class T>
__device__ void set_four(T* data, std::size_t i, std::size_t count, bool by_fours, Four<T> four) {
  if (by_fours && i + 4 <= count) {
    *reinterpret_cast<Four<T>*>(data + i) = four;
  } else {
    for (int k = 0; k < 4; ++k) {
      if (i + k < count) data[i + k] = four.each[k];
    }
  }
}

}  // namespace stretto::cuda
