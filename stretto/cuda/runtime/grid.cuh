// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

// How the threads of a kernel share out elements. For nvcc.
namespace stretto::cuda {

inline constexpr unsigned kThreads = 256;  // Of a block.
// Enough to fill any device; threads take several elements where there are more.
inline constexpr std::size_t kBlocksMax = 8192;

inline unsigned blocks_for(std::size_t threads, std::size_t most = kBlocksMax) {
  return static_cast<unsigned>(std::min(most, (threads + kThreads - 1) / kThreads));
}

#ifdef __CUDACC__  // Without nvcc, tests/kernels/simulated has it.
template <class... Parameters>
void launch(void (*kernel)(Parameters...), unsigned blocks, cudaStream_t on,
            std::type_identity_t<Parameters>... arguments) {
  kernel<<<blocks, kThreads, 0, on>>>(arguments...);
}
#endif

__device__ inline std::size_t first_element() {
  return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ inline std::size_t stride() { return std::size_t{gridDim.x} * blockDim.x; }

}  // namespace stretto::cuda
