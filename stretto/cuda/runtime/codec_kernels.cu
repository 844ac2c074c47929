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

// Four neighbours from element i on; what is beyond the end is zero.
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

// A block counts each digit several times, and lanes side by side have one each: values are mostly
// alike, and lanes that add to one number take turns.
constexpr unsigned kCountsOfBlock = 8192;

// How many values have which digit, of those whose higher digits are the cut's.
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
  constexpr unsigned kFours = 4;  // That are read at once.
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

// As many blocks as run at once: those that are left over would begin when the others have ended.
unsigned blocks_at_once() {
  int device = 0, processors = 1, of_each = 1;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  (void)cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_each, count_digits, kThreads, 0);
  return static_cast<unsigned>(processors * of_each);
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

__device__ void look_at(unsigned magnitude, unsigned cut, Hits& hits) {
  hits.above += magnitude > cut ? 1 : 0;
  hits.equal += magnitude == cut ? 1 : 0;
}

// By one block for each tile. In no order, so lanes read neighbours.
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

// By one block for each tile. A thread looks at neighbours, so that all are in order.
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
// Enough that threads take one four each: with a loop these kernels are slower.
unsigned blocks_of(std::size_t count, std::size_t fours) {
  return blocks_for(fours != 0 ? fours : count, std::size_t{1} << 20);
}

constexpr int kSaysNan = -128;

// A power of two that has this exponent.
__device__ float scale_of(unsigned exponent) { return __uint_as_float(exponent << 23); }

// A warp for each block of values, whose greatest magnitude is a code of 64 to 127: as the kernels
// of the host have it, and without a rounding but that of codes. A lane holds its values meanwhile.
__global__ __launch_bounds__(kThreads) void round_bytes(float* values, std::size_t count,
                                                        bool by_fours, std::int8_t* codes,
                                                        std::uint8_t* scales) {
  constexpr unsigned kFours = kInt8Block / kWarp / 4;
  const unsigned lane = threadIdx.x % kWarp;
  const std::size_t blocks = (count + kInt8Block - 1) / kInt8Block;
  for (std::size_t b = first_element() / kWarp; b < blocks; b += stride() / kWarp) {
    const std::size_t first = b * kInt8Block + 4 * lane;
    Four<float> own[kFours];
    unsigned greatest = 0;
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) {
      own[j] = four_at(values, first + j * 4 * kWarp, count, by_fours);
      for (const float value : own[j].each) {
        if (isfinite(value)) greatest = max(greatest, magnitude(value));
      }
    }
    for (unsigned step = kWarp / 2; step > 0; step /= 2) {
      greatest = max(greatest, __shfl_xor_sync(kAll, greatest, step));
    }
    const unsigned exponent = max(greatest >> 23, 7u) - 6;
    const float scale = scale_of(exponent), inverse = scale_of(254 - exponent);
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) {
      Four<std::int8_t> said;
      for (int k = 0; k < 4; ++k) {
        float& value = own[j].each[k];
        const bool is_number = isfinite(value);
        const float code = is_number ? fminf(fmaxf(rintf(value * inverse), -127.0f), 127.0f) : 0.0f;
        said.each[k] = static_cast<std::int8_t>(is_number ? static_cast<int>(code) : kSaysNan);
        value = is_number ? rest_of(value, code * scale) : 0.0f;
      }
      set_four(codes, first + j * 4 * kWarp, count, by_fours, said);
      set_four(values, first + j * 4 * kWarp, count, by_fours, own[j]);
    }
    if (lane == 0) scales[b] = static_cast<std::uint8_t>(exponent);
  }
}

__global__ __launch_bounds__(kThreads) void add_bytes(float* values, std::size_t count,
                                                      std::size_t fours, const std::int8_t* codes,
                                                      const std::uint8_t* scales) {
  add_all(values, count, fours, codes, [=](std::size_t i, std::int8_t code) {
    const float scale = scale_of(min(static_cast<unsigned>(scales[i / kInt8Block]), 248u));
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
  begin<<<1, kThreads, 0, on>>>(found, static_cast<unsigned>(selection->greatest));
  const unsigned blocks = std::min(blocks_at_once(), blocks_for((count + 3) / 4));
  unsigned shift = 31;
  // The exponent first, of which there are few.
  for (const unsigned bits : {8u, 11u, 12u}) {
    shift -= bits;
    count_digits<<<blocks, kThreads, 0, on>>>(values, count, by_fours, found, shift, bits);
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
    auto* const codes = static_cast<std::int8_t*>(rounding->numbers);
    const std::size_t blocks = (rounding->count + kInt8Block - 1) / kInt8Block;
    round_bytes<<<blocks_for(kWarp * blocks), kThreads, 0, on>>>(
        rounding->values, rounding->count, is_aligned(rounding->values) && is_aligned(codes), codes,
        rounding->scales);
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
        addition->values, addition->count, fours, codes, addition->scales);
  }
  return cudaGetLastError();
}
