// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/cuda/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "stretto/cuda/runtime/grid.cuh"
#include "stretto/cuda/runtime/values.cuh"

namespace stretto::cuda {
namespace {

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

// Encodes `value` as a number; the rest stays in `value`.
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

// How many fours of elements there are; 0 if memory is not aligned for accesses of four elements.
template <class Number>
std::size_t fours_of(const float* values, const Number* numbers, std::size_t count) {
  return is_aligned(values) && is_aligned(numbers) ? count / 4 : 0;
}
// Enough that threads take one four each: with a loop these kernels are slower.
unsigned blocks_of(std::size_t count, std::size_t fours) {
  return blocks_for(fours != 0 ? fours : count, std::size_t{1} << 20);
}

constexpr int kSaysNan = -128;

// The power of two that has this biased exponent.
__device__ float scale_of(unsigned exponent) { return __uint_as_float(exponent << 23); }

__device__ unsigned mixed(unsigned bits) {
  bits = (bits ^ bits >> 16) * 0x21F0AAADu;
  bits = (bits ^ bits >> 15) * 0xD35A2D97u;
  return bits ^ bits >> 15;
}
// A random number in [0, 1), the same as in the host's kernels.
__device__ float drawn(std::uint64_t key, std::size_t index) {
  const unsigned bits = mixed(static_cast<unsigned>(index) + static_cast<unsigned>(key));
  return static_cast<float>(mixed(bits ^ static_cast<unsigned>(key >> 32)) >> 8) * 0x1p-24f;
}

// One warp encodes a block of values. The scale makes its greatest magnitude a code of 64 to 127,
// as in the host's kernels, and only codes are rounded: by the random numbers of `key`, if it
// draws. Lanes hold their values meanwhile.
template <bool kDraws>
__global__ __launch_bounds__(kThreads) void round_bytes(float* values, std::size_t count,
                                                        bool by_fours, std::int8_t* codes,
                                                        std::uint8_t* scales, std::uint64_t key) {
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
    greatest = greatest_of_warp(greatest);
    unsigned exponent = max(greatest >> 23, 7u) - 6;
    // Above 127 * scale, there is no code to round up to.
    if (kDraws && (greatest & 0x7FFFFF) > 0x7E0000 && exponent < 248) ++exponent;
    const float scale = scale_of(exponent), inverse = scale_of(254 - exponent);
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) {
      Four<std::int8_t> said;
      for (int k = 0; k < 4; ++k) {
        float& value = own[j].each[k];
        const bool is_number = isfinite(value);
        float code = is_number ? value * inverse : 0.0f;
        if constexpr (kDraws) {
          const float whole = floorf(code);
          const bool goes_up = drawn(key, first + j * 4 * kWarp + k) < code - whole;
          code = whole + (goes_up ? 1.0f : 0.0f);
        } else {
          code = rintf(code);
        }
        code = fminf(fmaxf(code, -127.0f), 127.0f);
        said.each[k] = static_cast<std::int8_t>(is_number ? static_cast<int>(code) : kSaysNan);
        // Code 0 has no sign: a negative zero stays in the rest.
        value = is_number ? rest_of(value, (code + 0.0f) * scale) : 0.0f;
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

// A block of values that share a scale.
struct SignBlock {
  unsigned* signs;  // 32 of them a word.
  float* scale;
  std::size_t first;
  unsigned count;
};
__device__ SignBlock sign_block(void* numbers, std::size_t block, std::size_t count) {
  constexpr std::size_t kBlocks = kSignSection / kSignBlock;
  constexpr std::size_t kBytes = kSignSection / 8 + kBlocks * sizeof(float);
  const std::size_t section = block / kBlocks, in_section = block % kBlocks;
  auto* const bytes = static_cast<unsigned char*>(numbers) + section * kBytes;
  const std::size_t signs = min(kSignSection, count - section * kSignSection);
  const std::size_t first = block * kSignBlock;
  return {reinterpret_cast<unsigned*>(bytes) + in_section * (kSignBlock / kWarp),
          reinterpret_cast<float*>(bytes + (signs + 63) / 64 * 8) + in_section, first,
          static_cast<unsigned>(min(kSignBlock, count - first))};
}

// One warp encodes a block. Lane j adds every 16th magnitude from the jth on, and then these sums
// are added half by half: the order of the host's kernels.
__global__ __launch_bounds__(kThreads) void round_signs(float* values, std::size_t count,
                                                        void* numbers) {
  constexpr unsigned kRows = kSignBlock / kWarp, kSums = kWarp / 2;
  const unsigned lane = threadIdx.x % kWarp;
  const std::size_t blocks = (count + kSignBlock - 1) / kSignBlock;
  for (std::size_t b = first_element() / kWarp; b < blocks; b += stride() / kWarp) {
    const SignBlock block = sign_block(numbers, b, count);
    float own[kRows];
    unsigned greatest = 0;
    float sum = 0;
#pragma unroll
    for (unsigned j = 0; j < kRows; ++j) {
      const unsigned i = j * kWarp + lane;
      own[j] = i < block.count ? values[block.first + i] : 0.0f;
      greatest = max(greatest, magnitude(own[j]));
      const float value = fabsf(own[j]);
      sum += value;
      sum += __shfl_down_sync(kAll, value, kSums);
    }
    for (unsigned step = kSums / 2; step > 0; step /= 2) {
      sum += __shfl_down_sync(kAll, sum, step);
    }
    sum = __shfl_sync(kAll, sum, 0);
    greatest = greatest_of_warp(greatest);
    const bool is_finite = greatest < 0x7F800000;
    const float mean = __fdiv_rn(sum, static_cast<float>(block.count));
    const float scale =
        is_finite ? fminf(__uint_as_float(greatest), mean) : __uint_as_float(0x7FC00000);
    const unsigned words = (block.count + 63) / 64 * 2;
#pragma unroll
    for (unsigned j = 0; j < kRows; ++j) {
      const bool is_negative = is_finite && own[j] < 0;
      const unsigned signs = __ballot_sync(kAll, is_negative);
      if (lane == 0 && j < words) block.signs[j] = signs;
      const unsigned i = j * kWarp + lane;
      const float rest = own[j] - (is_negative ? -scale : scale);
      if (i < block.count) values[block.first + i] = is_finite ? rest : 0.0f;
    }
    if (lane == 0) *block.scale = scale;
  }
}

__global__ __launch_bounds__(kThreads) void add_signs(float* values, std::size_t count,
                                                      void* numbers) {
  const unsigned lane = threadIdx.x % kWarp;
  const std::size_t blocks = (count + kSignBlock - 1) / kSignBlock;
  for (std::size_t b = first_element() / kWarp; b < blocks; b += stride() / kWarp) {
    const SignBlock block = sign_block(numbers, b, count);
    const float scale = *block.scale;
#pragma unroll
    for (unsigned j = 0; j < kSignBlock / kWarp; ++j) {
      const unsigned i = j * kWarp + lane;
      if (i >= block.count) continue;
      values[block.first + i] += (block.signs[j] >> lane & 1) != 0 ? -scale : scale;
    }
  }
}

// For kernels that give a warp to each block.
unsigned warps_for(std::size_t count, std::size_t block) {
  return blocks_for(kWarp * ((count + block - 1) / block));
}

template <class Number>
void begin_rounding(const Rounding& rounding, cudaStream_t on) {
  auto* const numbers = static_cast<Number*>(rounding.numbers);
  const std::size_t fours = fours_of(rounding.values, numbers, rounding.count);
  launch(round_halves<Number>, blocks_of(rounding.count, fours), on, rounding.values,
         rounding.count, fours, rounding.limit, numbers);
}

template <class Number>
void begin_addition(const Addition& addition, cudaStream_t on) {
  const auto* const numbers = static_cast<const Number*>(addition.numbers);
  const std::size_t fours = fours_of(addition.values, numbers, addition.count);
  launch(add_halves<Number>, blocks_of(addition.count, fours), on, addition.values, addition.count,
         fours, numbers);
}

}  // namespace
}  // namespace stretto::cuda

extern "C" __attribute__((visibility("default"))) int STRETTO_CUDA_ROUND(
    const stretto::cuda::Rounding* rounding, void* stream) {
  using namespace stretto::cuda;
  auto* const on = static_cast<cudaStream_t>(stream);
  if (rounding->dtype == stretto::DType::f16) {
    begin_rounding<__half>(*rounding, on);
  } else if (rounding->dtype == stretto::DType::bf16) {
    begin_rounding<__nv_bfloat16>(*rounding, on);
  } else if (rounding->dtype == stretto::DType::boolean) {
    launch(round_signs, warps_for(rounding->count, kSignBlock), on, rounding->values,
           rounding->count, rounding->numbers);
  } else {
    auto* const codes = static_cast<std::int8_t*>(rounding->numbers);
    launch(rounding->is_stochastic ? round_bytes<true> : round_bytes<false>,
           warps_for(rounding->count, kInt8Block), on, rounding->values, rounding->count,
           is_aligned(rounding->values) && is_aligned(codes), codes, rounding->scales,
           rounding->key);
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
  } else if (addition->dtype == stretto::DType::boolean) {
    launch(add_signs, warps_for(addition->count, kSignBlock), on, addition->values, addition->count,
           addition->numbers);
  } else {
    const auto* const codes = static_cast<const std::int8_t*>(addition->numbers);
    const std::size_t fours = fours_of(addition->values, codes, addition->count);
    launch(add_bytes, blocks_of(addition->count, fours), on, addition->values, addition->count,
           fours, codes, addition->scales);
  }
  return cudaGetLastError();
}
