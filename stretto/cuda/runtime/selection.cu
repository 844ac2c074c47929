// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/cuda/kernels.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "stretto/cuda/runtime/grid.cuh"
#include "stretto/cuda/runtime/values.cuh"

namespace stretto::cuda {
namespace {

constexpr unsigned kWarps = kThreads / kWarp;

// The state of a selection, at the beginning of its room.
struct Found {
  unsigned cut;     // Digits so far; at the end, the least magnitude that is taken.
  unsigned wanted;  // So many values with these digits are taken.
  unsigned counts[kDigits];
};
// Behind it in the room: for each tile, how many values are above the cut, and how many equal it;
// after sum_hits(), how many in all tiles before it.
struct Hits {
  unsigned above;
  unsigned equal;
};
__device__ __host__ Hits* hits_of(Found* found) { return reinterpret_cast<Hits*>(found + 1); }

// By one block.
__global__ void begin(Found* found, unsigned wanted) {
  if (threadIdx.x == 0) {
    found->cut = 0;
    found->wanted = wanted;
  }
  for (unsigned d = threadIdx.x; d < kDigits; d += kThreads) found->counts[d] = 0;
}

// A block counts each digit in several counters, one for each of so many neighbouring lanes: values
// are mostly alike, and lanes that add to one counter take turns.
constexpr unsigned kCountsOfBlock = 8192;

// Counts the digits of those values whose higher digits are the cut's.
__global__ __launch_bounds__(kThreads) void count_digits(const float* __restrict__ values,
                                                         std::size_t count, bool by_fours,
                                                         Found* found, unsigned shift,
                                                         unsigned bits) {
  __shared__ unsigned counts[kCountsOfBlock];
  for (unsigned c = threadIdx.x; c < kCountsOfBlock; c += kThreads) counts[c] = 0;
  __syncthreads();
  const unsigned copies = kCountsOfBlock >> bits;
  const unsigned cut = found->cut, mask = (1u << bits) - 1;
  const unsigned copy = threadIdx.x % copies;
  constexpr unsigned kFours = 4;  // Fours that are read at once.
  for (std::size_t i = 4 * first_element(); i < count; i += kFours * 4 * stride()) {
    Four<float> fours[kFours];
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) {
      fours[j] = four_at(values, i + j * 4 * stride(), count, by_fours);
    }
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) {
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) {
        const unsigned shifted = magnitude(fours[j].each[k]) >> shift;
        const bool is_one = i + j * 4 * stride() + k < count && shifted >> bits == cut;
        if (is_one) atomicAdd(&counts[(shifted & mask) * copies + copy], 1u);
      }
    }
  }
  __syncthreads();
  for (unsigned d = threadIdx.x; d < 1u << bits; d += kThreads) {
    unsigned all = 0;
    for (unsigned c = 0; c < copies; ++c) all += counts[d * copies + (c + d) % copies];
    if (all != 0) atomicAdd(&found->counts[d], all);
  }
}

// As many blocks as run at once: further ones would begin only when the others have ended.
unsigned blocks_at_once() {
  int device = 0, processors = 1, of_each = 1;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  (void)cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_each, count_digits, kThreads, 0);
  return static_cast<unsigned>(processors * of_each);
}

// The sum of `own` over the threads before this one; one block.
__device__ unsigned sum_before(unsigned own, unsigned* total) {
  __shared__ unsigned of_warps[kWarps];
  const unsigned lane = threadIdx.x % kWarp;
  unsigned sum = own;
  for (unsigned step = 1; step < kWarp; step *= 2) {
    const unsigned other = __shfl_up_sync(kAll, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();  // All have read the sums of the call before.
  if (lane == kWarp - 1) of_warps[threadIdx.x / kWarp] = sum;
  __syncthreads();
  unsigned before = 0;
  *total = 0;
  for (unsigned warp = 0; warp < kWarps; ++warp) {
    if (warp < threadIdx.x / kWarp) before += of_warps[warp];
    *total += of_warps[warp];
  }
  return before + sum - own;
}

// Finds the digit of the last wanted value, counted from the greatest digit; by one block.
__global__ __launch_bounds__(kThreads) void choose_digit(Found* found, unsigned bits) {
  constexpr unsigned kDigitsOfThread = kDigits / kThreads;
  unsigned counts[kDigitsOfThread];
  unsigned own = 0;
  for (unsigned j = 0; j < kDigitsOfThread; ++j) {
    counts[j] = found->counts[kDigits - 1 - (threadIdx.x * kDigitsOfThread + j)];
    own += counts[j];
  }
  const unsigned wanted = found->wanted;
  unsigned total = 0;
  unsigned before = sum_before(own, &total);
  for (unsigned j = 0; j < kDigitsOfThread; ++j) {
    const unsigned digit = kDigits - 1 - (threadIdx.x * kDigitsOfThread + j);
    found->counts[digit] = 0;
    if (before < wanted && wanted <= before + counts[j]) {
      found->cut = found->cut << bits | digit;
      found->wanted = wanted - before;
    }
    before += counts[j];
  }
}

__device__ void look_at(unsigned magnitude, unsigned cut, Hits& hits) {
  hits.above += magnitude > cut ? 1 : 0;
  hits.equal += magnitude == cut ? 1 : 0;
}

// By one block for each tile. The order does not matter, so lanes read neighbours.
__global__ __launch_bounds__(kThreads) void count_hits(const float* __restrict__ values,
                                                       std::size_t count, bool by_fours,
                                                       Found* found) {
  constexpr unsigned kFours = kTile / kThreads / 4;
  const unsigned cut = found->cut;
  const std::size_t first = blockIdx.x * kTile + 4 * threadIdx.x;
  Hits own{};
  Four<float> fours[kFours];
#pragma unroll
  for (unsigned j = 0; j < kFours; ++j) {
    fours[j] = four_at(values, first + j * 4 * kThreads, count, by_fours);
  }
#pragma unroll
  for (unsigned j = 0; j < kFours; ++j) {
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      if (first + j * 4 * kThreads + k < count) look_at(magnitude(fours[j].each[k]), cut, own);
    }
  }
  Hits of_tile;
  (void)sum_before(own.above, &of_tile.above);
  (void)sum_before(own.equal, &of_tile.equal);
  if (threadIdx.x == 0) hits_of(found)[blockIdx.x] = of_tile;
}

// By one block.
__global__ __launch_bounds__(kThreads) void sum_hits(Found* found, std::size_t tiles) {
  Hits* const hits = hits_of(found);
  Hits before{};
  for (std::size_t first = 0; first < tiles; first += kThreads) {
    const std::size_t tile = first + threadIdx.x;
    const Hits own = tile < tiles ? hits[tile] : Hits{};
    Hits total;
    const unsigned above = sum_before(own.above, &total.above);
    const unsigned equal = sum_before(own.equal, &total.equal);
    if (tile < tiles) hits[tile] = {before.above + above, before.equal + equal};
    before.above += total.above;
    before.equal += total.equal;
  }
}

// By one block for each tile. A thread reads neighbours, so that indices are in order.
__global__ __launch_bounds__(kThreads) void write_indices(const float* __restrict__ values,
                                                          std::size_t count, bool by_fours,
                                                          Found* found, std::int64_t* indices) {
  constexpr unsigned kOfThread = kTile / kThreads;
  const unsigned cut = found->cut, wanted = found->wanted;
  const std::size_t first = blockIdx.x * kTile + threadIdx.x * kOfThread;
  unsigned magnitudes[kOfThread];
  Hits own{};
#pragma unroll
  for (unsigned j = 0; j < kOfThread; j += 4) {
    const Four<float> four = four_at(values, first + j, count, by_fours);
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      magnitudes[j + k] = magnitude(four.each[k]);
      if (first + j + k < count) look_at(magnitudes[j + k], cut, own);
    }
  }
  const Hits before = hits_of(found)[blockIdx.x];
  unsigned total = 0;
  unsigned above = before.above + sum_before(own.above, &total);
  unsigned equal = before.equal + sum_before(own.equal, &total);
  if (own.above + own.equal == 0) return;
#pragma unroll
  for (unsigned j = 0; j < kOfThread; ++j) {
    if (first + j >= count || magnitudes[j] < cut) continue;
    const bool is_above = magnitudes[j] > cut;
    if (is_above || equal < wanted) {
      indices[above + min(equal, wanted)] = static_cast<std::int64_t>(first + j);
    }
    above += is_above ? 1 : 0;
    equal += is_above ? 0 : 1;
  }
}

}  // namespace
}  // namespace stretto::cuda

extern "C" __attribute__((visibility("default"))) int STRETTO_CUDA_PROBE() {
  cudaFuncAttributes ignored;
  const int error = cudaFuncGetAttributes(&ignored, stretto::cuda::sum_hits);
  (void)cudaGetLastError();  // Else the next launch of this thread would be blamed for it.
  return error;
}

extern "C" __attribute__((visibility("default"))) int STRETTO_CUDA_SELECT(
    const stretto::cuda::Selection* selection, void* stream) {
  using namespace stretto::cuda;
  static_assert(sizeof(Found) + sizeof(Hits) == selection_room(1) * sizeof(std::uint32_t));
  auto* const on = static_cast<cudaStream_t>(stream);
  auto* const found = reinterpret_cast<Found*>(selection->room);
  const auto tiles = static_cast<unsigned>(selection_tiles(selection->count));
  const float* const values = selection->values;
  const std::size_t count = selection->count;
  const bool by_fours = is_aligned(values);
  launch(begin, 1, on, found, static_cast<unsigned>(selection->greatest));
  const unsigned blocks = std::min(blocks_at_once(), blocks_for((count + 3) / 4));
  unsigned shift = 31;
  // The exponent first: it has few different values.
  for (const unsigned bits : {8u, 11u, 12u}) {
    shift -= bits;
    launch(count_digits, blocks, on, values, count, by_fours, found, shift, bits);
    launch(choose_digit, 1, on, found, bits);
  }
  launch(count_hits, tiles, on, values, count, by_fours, found);
  launch(sum_hits, 1, on, found, tiles);
  launch(write_indices, tiles, on, values, count, by_fours, found, selection->indices);
  return cudaGetLastError();
}
