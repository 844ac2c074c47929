// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

// Replaces CUDA's header for kernels that are compiled as C++. Each thread of a block is a thread
// of the host, and blocks run one after the other. So ThreadSanitizer sees accesses of a block's
// threads that lack a barrier. A warp is in step only where its lanes exchange something; there,
// all lanes also see what the others have written before, which a GPU does not promise.

#include <algorithm>
#include <atomic>
#include <barrier>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __shared__ static  // Blocks use it one after the other.
#define __launch_bounds__(threads)

using std::isfinite;
using std::max;
using std::min;

using cudaStream_t = void*;
struct cudaFuncAttributes {};
constexpr int cudaDevAttrMultiProcessorCount = 0;
inline int cudaGetDevice(int* device) { return *device = 0; }
inline int cudaDeviceGetAttribute(int* processors, int, int) { return *processors = 2, 0; }
template <class Kernel>
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel, unsigned, std::size_t) {
  return *blocks = 1, 0;
}
template <class Kernel>
int cudaFuncGetAttributes(cudaFuncAttributes*, Kernel) {
  return 0;
}
inline int cudaGetLastError() { return 0; }

namespace stretto::simulated_cuda {

inline constexpr unsigned kThreads = 256, kWarp = 32;

struct Block {
  struct Warp {
    std::barrier<> barrier{kWarp};
    std::uint32_t said[kWarp];
  };
  std::barrier<> barrier{kThreads};
  Warp warps[kThreads / kWarp];
};
struct Place {
  unsigned x = 0;
};
inline thread_local Block* block_of_thread = nullptr;

}  // namespace stretto::simulated_cuda

inline thread_local stretto::simulated_cuda::Place threadIdx, blockIdx, blockDim, gridDim;

namespace stretto::simulated_cuda {

inline unsigned lane() { return threadIdx.x % kWarp; }

// Returns what read() makes of the values that the lanes of this thread's warp have given.
template <class Read>
auto exchange(std::uint32_t own, const Read& read) {
  Block::Warp& warp = block_of_thread->warps[threadIdx.x / kWarp];
  warp.said[lane()] = own;
  warp.barrier.arrive_and_wait();
  const auto result = read(warp.said);
  warp.barrier.arrive_and_wait();
  return result;
}
template <class T>
T said_by(unsigned from, T own) {
  return exchange(std::bit_cast<std::uint32_t>(own), [=](const std::uint32_t* said) {
    return std::bit_cast<T>(said[from < kWarp ? from : lane()]);
  });
}

}  // namespace stretto::simulated_cuda

template <class T>
T __shfl_sync(unsigned, T own, unsigned from) {
  return stretto::simulated_cuda::said_by(from, own);
}
template <class T>
T __shfl_up_sync(unsigned, T own, unsigned step) {
  return stretto::simulated_cuda::said_by(stretto::simulated_cuda::lane() - step, own);
}
template <class T>
T __shfl_down_sync(unsigned, T own, unsigned step) {
  return stretto::simulated_cuda::said_by(stretto::simulated_cuda::lane() + step, own);
}
template <class T>
T __shfl_xor_sync(unsigned, T own, unsigned mask) {
  return stretto::simulated_cuda::said_by(stretto::simulated_cuda::lane() ^ mask, own);
}
inline unsigned __ballot_sync(unsigned, bool own) {
  return stretto::simulated_cuda::exchange(own ? 1 : 0, [](const std::uint32_t* said) {
    unsigned bits = 0;
    for (unsigned l = 0; l < stretto::simulated_cuda::kWarp; ++l) bits |= said[l] << l;
    return bits;
  });
}
inline void __syncthreads() { stretto::simulated_cuda::block_of_thread->barrier.arrive_and_wait(); }
inline unsigned atomicAdd(unsigned* to, unsigned value) {
  return std::atomic_ref(*to).fetch_add(value, std::memory_order_relaxed);
}
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline float __fdiv_rn(float a, float b) { return a / b; }

namespace stretto::cuda {

// Returns when the kernel has ended.
template <class... Parameters>
void launch(void (*kernel)(Parameters...), unsigned blocks, cudaStream_t,
            std::type_identity_t<Parameters>... arguments) {
  namespace simulated = simulated_cuda;
  simulated::Block block;
  std::vector<std::jthread> threads;
  for (unsigned thread = 0; thread < simulated::kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      simulated::block_of_thread = &block;
      threadIdx.x = thread;
      blockDim.x = simulated::kThreads;
      gridDim.x = blocks;
      for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        kernel(arguments...);
        block.barrier.arrive_and_wait();
      }
    });
  }
}

}  // namespace stretto::cuda
