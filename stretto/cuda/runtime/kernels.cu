// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/cuda/kernels.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "stretto/cuda/visit_reduction.h"

namespace stretto::cuda {
namespace {

constexpr unsigned kThreads = 256;
// Enough to fill any device; threads take several elements where there are more.
constexpr std::size_t kBlocksMax = 8192;

unsigned blocks_for(std::size_t elements) {
  return static_cast<unsigned>(std::min(kBlocksMax, (elements + kThreads - 1) / kThreads));
}

__device__ std::size_t first_element() {
  return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ std::size_t stride() { return std::size_t{gridDim.x} * blockDim.x; }

template <class Format, class Op>
__global__ void reduce(const Operands operands) {
  for (std::size_t i = first_element(); i < operands.count; i += stride()) {
    const typename Format::Out result = reduce_element<Format, Op>(operands, i);
    for (int k = 0; k < operands.output_count; ++k) {
      static_cast<typename Format::Out*>(operands.outputs[k])[i] = result;
    }
  }
}

}  // namespace
}  // namespace stretto::cuda

extern "C" __attribute__((visibility("default"))) int STRETTO_CUDA_REDUCE(
    stretto::DType dtype, stretto::DType output, stretto::ReduceOp op,
    const stretto::cuda::Operands* operands, void* stream) {
  using namespace stretto::cuda;
  const auto launch = [&]<class Format, class Op>(Format, Op, int parts) {
    Operands own = *operands;
    own.count *= static_cast<std::size_t>(parts);
    reduce<Format, Op>
        <<<blocks_for(own.count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(own);
  };
  return visit_reduction(dtype, output, op, launch) ? cudaGetLastError() : kNoKernel;
}
