// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/cuda/kernels.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "stretto/cuda/runtime/grid.cuh"
#include "stretto/cuda/visit_reduction.h"

namespace stretto::cuda {
namespace {

// The longest access to memory that a thread has.
constexpr std::size_t kPackBytes = 16;

template <class T>
__device__ void write_to_all(const Operands& operands, std::size_t i, const T& result) {
  for (int k = 0; k < operands.output_count; ++k) static_cast<T*>(operands.outputs[k])[i] = result;
}

// Blocks on a multiprocessor. As measured on an H200: fewer wait for memory, and with more, numbers
// of 16 bits lack registers. Turing (sm_75) has room for four.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
inline constexpr int kBlocksMaxAtOnce = 4;
#else
inline constexpr int kBlocksMaxAtOnce = 6;
#endif
template <class Format>
inline constexpr int kBlocksAtOnce = std::min(sizeof(typename Format::In) == 2 ? 5 : 6,
                                              kBlocksMaxAtOnce);

// Reduces the first elements by packs and the rest one by one, by the code that packs with a NaN
// need, too. The rest comes first: as measured, packs of 16 bits then have more registers.
template <class Format, class Op, int kCount>
__global__ __launch_bounds__(kThreads, kBlocksAtOnce<Format>) void reduce(
    const __grid_constant__ Operands operands, std::size_t packs) {
  for (std::size_t i = packs * kCount + first_element(); i < operands.count; i += stride()) {
    write_to_all(operands, i, exact_element<Format, Op>(operands, i));
  }
  for (std::size_t i = first_element(); i < packs; i += stride()) {
    write_to_all(operands, i, reduce_pack<Format, Op, kCount>(operands, i));
  }
}

template <class Format, int kCount>
__global__ __launch_bounds__(kThreads) void scale(const __grid_constant__ Operands operands,
                                                  std::size_t packs) {
  for (std::size_t i = packs * kCount + first_element(); i < operands.count; i += stride()) {
    write_to_all(operands, i, exact_product<Format>(operands, i));
  }
  for (std::size_t i = first_element(); i < packs; i += stride()) {
    write_to_all(operands, i, scaled_pack<Format, kCount>(operands, i));
  }
}

bool are_aligned(const void* const* buffers, int count) {
  return std::all_of(buffers, buffers + count, [](const void* buffer) {
    return reinterpret_cast<std::uintptr_t>(buffer) % kPackBytes == 0;
  });
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
    // Bytes are computed in registers of 32 bits: with 16 bytes for each thread, few threads would
    // run.
    constexpr int kCount = std::min<int>(kPackBytes / sizeof(typename Format::In), 8);
    const bool aligned =
        are_aligned(own.inputs, own.input_count) && are_aligned(own.outputs, own.output_count);
    const std::size_t packs = aligned ? own.count / kCount : 0;
    const unsigned blocks = blocks_for(packs != 0 ? packs : own.count);
    auto* const on = static_cast<cudaStream_t>(stream);
    if constexpr (kTakesFactor<Format, Op>) {
      if (own.factor != 1) {
        scale<Format, kCount><<<blocks, kThreads, 0, on>>>(own, packs);
        return;
      }
    }
    reduce<Format, Op, kCount><<<blocks, kThreads, 0, on>>>(own, packs);
  };
  return visit_reduction(dtype, output, op, launch) ? cudaGetLastError() : kNoKernel;
}
