// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/cuda/codec_kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "stretto/cuda/runtime/grid.cuh"

namespace stretto::cuda {
namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kWarps = kThreads / kWarp;
constexpr unsigned kAll = 0xFFFFFFFF;  // Lanes of a warp.

// As codec::Codec orders values.
__device__ unsigned magnitude(float value) { return __float_as_uint(value) & 0x7FFFFFFF; }

// What a selection has found out, in its room.
struct Found {
  unsigned cut;     // The digits so far; at the end the magnitude of the least that is taken.
  unsigned wanted;  // So many of those with these digits.
  unsigned counts[kDigits];
};
// Behind it: of each tile, how many values are above the cut and how many are it; then, of those in
// the tiles before.
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

// Neighbours, which one access to memory reads or writes.
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T each[4];
};

template <class T>
bool is_aligned(const T* data) {
  return reinterpret_cast<std::uintptr_t>(data) % sizeof(Four<T>) == 0;
}

// How many values have which digit, of those whose higher digits are the cut's. Values are mostly
// alike, so neighbouring lanes count for themselves.
__global__ __launch_bounds__(kThreads) void count_digits(const float* values, std::size_t count,
                                                         std::size_t fours, Found* found,
                                                         unsigned shift, unsigned bits) {
  constexpr unsigned kCopies = 4;
  __shared__ unsigned counts[kDigits][kCopies];
  for (unsigned d = threadIdx.x; d < kDigits * kCopies; d += kThreads) counts[0][d] = 0;
  __syncthreads();
  const unsigned cut = found->cut;
  const unsigned mask = (1u << bits) - 1;
  const auto look_at = [&](float value) {
    const unsigned shifted = magnitude(value) >> shift;
    if (shifted >> bits == cut) atomicAdd(&counts[shifted & mask][threadIdx.x % kCopies], 1u);
  };
  for (std::size_t i = 4 * fours + first_element(); i < count; i += stride()) look_at(values[i]);
#pragma unroll 4
  for (std::size_t i = first_element(); i < fours; i += stride()) {
    const auto four = reinterpret_cast<const Four<float>*>(values)[i];
    for (const float value : four.each) look_at(value);
  }
  __syncthreads();
  for (unsigned d = threadIdx.x; d < kDigits; d += kThreads) {
    const unsigned all = counts[d][0] + counts[d][1] + counts[d][2] + counts[d][3];
    if (all != 0) atomicAdd(&found->counts[d], all);
  }
}

// The sum of what the threads before this one have; one block.
__device__ unsigned sum_before(unsigned own, unsigned* total) {
  __shared__ unsigned of_warps[kWarps];
  const unsigned lane = threadIdx.x % kWarp;
  unsigned sum = own;
  for (unsigned step = 1; step < kWarp; step *= 2) {
    const unsigned other = __shfl_up_sync(kAll, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();  // Nobody reads those of before any more.
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

// The digit that holds the last wanted one, counted from the greatest digit; by one block.
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

// The values of a tile that a thread looks at: neighbours, so that all of them are in order.
constexpr unsigned kOfThread = kTile / kThreads;
struct Share {
  std::size_t first;
  unsigned count = 0;
  unsigned magnitudes[kOfThread];
  Hits hits{};
};

__device__ Share share_of(const float* values, std::size_t count, bool by_fours, unsigned cut) {
  Share share;
  share.first = blockIdx.x * kTile + threadIdx.x * kOfThread;
  if (share.first < count) share.count = min(std::size_t{kOfThread}, count - share.first);
  if (by_fours && share.count == kOfThread) {
    const auto* const from = reinterpret_cast<const Four<float>*>(values + share.first);
#pragma unroll
    for (unsigned j = 0; j < kOfThread; j += 4) {
      const Four<float> four = from[j / 4];
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) share.magnitudes[j + k] = magnitude(four.each[k]);
    }
  } else {
#pragma unroll
    for (unsigned j = 0; j < kOfThread; ++j) {
      share.magnitudes[j] = j < share.count ? magnitude(values[share.first + j]) : 0;
    }
  }
#pragma unroll
  for (unsigned j = 0; j < kOfThread; ++j) {
    share.hits.above += j < share.count && share.magnitudes[j] > cut ? 1 : 0;
    share.hits.equal += j < share.count && share.magnitudes[j] == cut ? 1 : 0;
  }
  return share;
}

// By one block for each tile.
__global__ __launch_bounds__(kThreads) void count_hits(const float* values, std::size_t count,
                                                       bool by_fours, Found* found) {
  const Hits own = share_of(values, count, by_fours, found->cut).hits;
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

// By one block for each tile.
__global__ __launch_bounds__(kThreads) void write_indices(const float* values, std::size_t count,
                                                          bool by_fours, Found* found,
                                                          std::int64_t* indices) {
  const unsigned cut = found->cut, wanted = found->wanted;
  const Share own = share_of(values, count, by_fours, cut);
  const Hits before = hits_of(found)[blockIdx.x];
  unsigned total = 0;
  unsigned above = before.above + sum_before(own.hits.above, &total);
  unsigned equal = before.equal + sum_before(own.hits.equal, &total);
  if (own.hits.above + own.hits.equal == 0) return;
#pragma unroll
  for (unsigned j = 0; j < kOfThread; ++j) {
    if (j >= own.count || own.magnitudes[j] < cut) continue;
    const bool is_above = own.magnitudes[j] > cut;
    if (is_above || equal < wanted) {
      indices[above + min(equal, wanted)] = static_cast<std::int64_t>(own.first + j);
    }
    above += is_above ? 1 : 0;
    equal += is_above ? 0 : 1;
  }
}

__device__ float rest_of(float value, float said) {
  const float rest = value - said;
  return isfinite(rest) ? rest : 0.0f;
}

template <class Number>
__device__ Number rounded(float value);
template <>
__device__ __half rounded<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ __nv_bfloat16 rounded<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// The number that says a value, of which the rest stays.
template <class Number>
__device__ Number take_out(float& value, float limit) {
  const Number said = rounded<Number>(isfinite(value) ? fminf(fmaxf(value, -limit), limit) : value);
  value = rest_of(value, static_cast<float>(said));
  return said;
}

template <class Number>
__global__ __launch_bounds__(kThreads) void round_halves(float* values, std::size_t count,
                                                         std::size_t fours, float limit,
                                                         Number* numbers) {
  for (std::size_t i = 4 * fours + first_element(); i < count; i += stride()) {
    numbers[i] = take_out<Number>(values[i], limit);
  }
  for (std::size_t i = first_element(); i < fours; i += stride()) {
    auto* const place = reinterpret_cast<Four<float>*>(values) + i;
    Four<float> own = *place;
    Four<Number> said;
    for (int k = 0; k < 4; ++k) said.each[k] = take_out<Number>(own.each[k], limit);
    reinterpret_cast<Four<Number>*>(numbers)[i] = said;
    *place = own;
  }
}

// Adds to value i what said(i, number i) returns.
template <class Number, class Said>
__device__ void add_all(float* values, std::size_t count, std::size_t fours, const Number* numbers,
                        const Said& said) {
  for (std::size_t i = 4 * fours + first_element(); i < count; i += stride()) {
    values[i] += said(i, numbers[i]);
  }
  for (std::size_t i = first_element(); i < fours; i += stride()) {
    auto* const place = reinterpret_cast<Four<float>*>(values) + i;
    Four<float> own = *place;
    const Four<Number> four = reinterpret_cast<const Four<Number>*>(numbers)[i];
    for (int k = 0; k < 4; ++k) own.each[k] += said(4 * i + k, four.each[k]);
    *place = own;
  }
}

template <class Number>
__global__ __launch_bounds__(kThreads) void add_halves(float* values, std::size_t count,
                                                       std::size_t fours, const Number* numbers) {
  add_all(values, count, fours, numbers,
          [](std::size_t, Number number) { return static_cast<float>(number); });
}

// How many fours of elements there are, if accesses to memory may be of four.
template <class Number>
std::size_t fours_of(const float* values, const Number* numbers, std::size_t count) {
  return is_aligned(values) && is_aligned(numbers) ? count / 4 : 0;
}
unsigned blocks_of(std::size_t count, std::size_t fours) {
  return blocks_for(fours != 0 ? fours : count);
}

constexpr int kSaysNan = -128;

// A power of two that has this exponent.
__device__ float scale_of(unsigned exponent) { return __uint_as_float(exponent << 23); }

// A warp for each block of values, whose greatest magnitude is a code of 64 to 127: as the kernels
// of the host have it, and without a rounding but that of codes.
__global__ __launch_bounds__(kThreads) void round_bytes(float* values, std::size_t count,
                                                        std::size_t block, std::int8_t* codes,
                                                        std::uint8_t* scales) {
  const unsigned lane = threadIdx.x % kWarp;
  const std::size_t blocks = (count + block - 1) / block;
  for (std::size_t b = first_element() / kWarp; b < blocks; b += stride() / kWarp) {
    const std::size_t end = min(count, (b + 1) * block);
    unsigned greatest = 0;
    for (std::size_t i = b * block + lane; i < end; i += kWarp) {
      if (isfinite(values[i])) greatest = max(greatest, magnitude(values[i]));
    }
    for (unsigned step = kWarp / 2; step > 0; step /= 2) {
      greatest = max(greatest, __shfl_xor_sync(kAll, greatest, step));
    }
    const unsigned exponent = max(greatest >> 23, 7u) - 6;
    const float scale = scale_of(exponent), inverse = scale_of(254 - exponent);
    for (std::size_t i = b * block + lane; i < end; i += kWarp) {
      const float value = values[i];
      const bool is_number = isfinite(value);
      const float code = is_number ? fminf(fmaxf(rintf(value * inverse), -127.0f), 127.0f) : 0.0f;
      codes[i] = static_cast<std::int8_t>(is_number ? static_cast<int>(code) : kSaysNan);
      values[i] = is_number ? rest_of(value, code * scale) : 0.0f;
    }
    if (lane == 0) scales[b] = static_cast<std::uint8_t>(exponent);
  }
}

__global__ __launch_bounds__(kThreads) void add_bytes(float* values, std::size_t count,
                                                      std::size_t fours, unsigned block,
                                                      const std::int8_t* codes,
                                                      const std::uint8_t* scales) {
  add_all(values, count, fours, codes, [=](std::size_t i, std::int8_t code) {
    // Numbers of 32 bits are divided several times as fast as those of 64.
    const std::size_t block_of_i = i >> 32 == 0 ? static_cast<unsigned>(i) / block : i / block;
    const float scale = scale_of(min(static_cast<unsigned>(scales[block_of_i]), 248u));
    return code == kSaysNan ? __uint_as_float(0x7FC00000) : static_cast<float>(code) * scale;
  });
}

template <class Number>
void begin_rounding(const Rounding& rounding, cudaStream_t on) {
  auto* const numbers = static_cast<Number*>(rounding.numbers);
  const std::size_t fours = fours_of(rounding.values, numbers, rounding.count);
  round_halves<<<blocks_of(rounding.count, fours), kThreads, 0, on>>>(
      rounding.values, rounding.count, fours, rounding.limit, numbers);
}

template <class Number>
void begin_addition(const Addition& addition, cudaStream_t on) {
  const auto* const numbers = static_cast<const Number*>(addition.numbers);
  const std::size_t fours = fours_of(addition.values, numbers, addition.count);
  add_halves<<<blocks_of(addition.count, fours), kThreads, 0, on>>>(addition.values, addition.count,
                                                                    fours, numbers);
}

}  // namespace
}  // namespace stretto::cuda

extern "C" __attribute__((visibility("default"))) int STRETTO_CUDA_PROBE() {
  cudaFuncAttributes ignored;
  return cudaFuncGetAttributes(&ignored, stretto::cuda::sum_hits);
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
  const std::size_t fours = by_fours ? count / 4 : 0;
  begin<<<1, kThreads, 0, on>>>(found, static_cast<unsigned>(selection->greatest));
  unsigned shift = 31;
  for (const unsigned bits : {11u, 10u, 10u}) {
    shift -= bits;
    // Few blocks, each of which adds what it has counted to what all have.
    const unsigned blocks = std::min(1024u, blocks_of(count, fours));
    count_digits<<<blocks, kThreads, 0, on>>>(values, count, fours, found, shift, bits);
    choose_digit<<<1, kThreads, 0, on>>>(found, bits);
  }
  count_hits<<<tiles, kThreads, 0, on>>>(values, count, by_fours, found);
  sum_hits<<<1, kThreads, 0, on>>>(found, tiles);
  write_indices<<<tiles, kThreads, 0, on>>>(values, count, by_fours, found, selection->indices);
  return cudaGetLastError();
}

extern "C" __attribute__((visibility("default"))) int STRETTO_CUDA_ROUND(
    const stretto::cuda::Rounding* rounding, void* stream) {
  using namespace stretto::cuda;
  auto* const on = static_cast<cudaStream_t>(stream);
  if (rounding->dtype == stretto::DType::f16) {
    begin_rounding<__half>(*rounding, on);
  } else if (rounding->dtype == stretto::DType::bf16) {
    begin_rounding<__nv_bfloat16>(*rounding, on);
  } else {
    const std::size_t blocks = (rounding->count + rounding->block - 1) / rounding->block;
    round_bytes<<<blocks_for(kWarp * blocks), kThreads, 0, on>>>(
        rounding->values, rounding->count, rounding->block,
        static_cast<std::int8_t*>(rounding->numbers), rounding->scales);
  }
  return cudaGetLastError();
}

extern "C" __attribute__((visibility("default"))) int STRETTO_CUDA_ADD(
    const stretto::cuda::Addition* addition, void* stream) {
  using namespace stretto::cuda;
  auto* const on = static_cast<cudaStream_t>(stream);
  if (addition->dtype == stretto::DType::f16) {
    begin_addition<__half>(*addition, on);
  } else if (addition->dtype == stretto::DType::bf16) {
    begin_addition<__nv_bfloat16>(*addition, on);
  } else {
    const auto* const codes = static_cast<const std::int8_t*>(addition->numbers);
    const std::size_t fours = fours_of(addition->values, codes, addition->count);
    add_bytes<<<blocks_of(addition->count, fours), kThreads, 0, on>>>(
        addition->values, addition->count, fours, static_cast<unsigned>(addition->block), codes,
        addition->scales);
  }
  return cudaGetLastError();
}
