// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>

#include "stretto/base/dtype.h"
#include "stretto/base/reduce_op.h"

// Our kernels. Each begins on a stream (a cudaStream_t) of the device that is current, and returns
// the error of the CUDA runtime, or 0 if there is none.
namespace stretto::cuda {

struct Operands;  // See reduction.h.

// Reduces the operands; or, if they have a factor, multiplies the one input by it. Returns
// kNoKernel if there is no kernel for it.
using Reduce = int (*)(DType dtype, DType output, ReduceOp op, const Operands* operands,
                       void* stream);
inline constexpr int kNoKernel = -1;

// The work that codecs leave to a device (codec::Extraction). All pointers are to its memory.

// Finds the indices of the `greatest` values with the greatest magnitudes, ascending; of equal
// ones, those that come first. A NaN is greater than infinity. A radix selection: it counts the
// digits of values, from the highest of three on, each time among the values whose higher digits
// are the cut's. With two passes for the indices, values are read five times. 0 < greatest <= count
// < 2^32.
struct Selection {
  const float* values = nullptr;
  std::size_t count = 0;
  std::size_t greatest = 0;
  std::int64_t* indices = nullptr;
  std::uint32_t* room = nullptr;  // selection_room() elements of any content.
};
inline constexpr std::size_t kDigits = 4096;    // Values of the longest digit.
inline constexpr std::size_t kTile = 4096;      // Values whose hits are counted together.
inline constexpr std::size_t kInt8Block = 256;  // Codes of 8 bits that share a scale.
inline constexpr std::size_t kSignBlock = 512;  // Signs that share a scale.
inline constexpr std::size_t kSignSection = 64 * kSignBlock;  // Signs side by side.
inline constexpr std::size_t selection_tiles(std::size_t count) {
  return (count + kTile - 1) / kTile;
}
inline constexpr std::size_t selection_room(std::size_t count) {
  return 2 + kDigits + 2 * selection_tiles(count);
}

// Encodes values as numbers, as codec::Extraction::rounded says: 16 bits each; codes of 8 bits with
// a scale for each block of kInt8Block; or, for boolean, sections of signs, each followed by the
// scales of its blocks of kSignBlock.
struct Rounding {
  // Receives the rest that is not encoded; zero for infinity and NaN.
  float* values = nullptr;
  std::size_t count = 0;
  DType dtype = DType::bf16;
  float limit = 0;
  // Aligned to the width of a number, or to 4 bytes for signs.
  void* numbers = nullptr;
  std::uint8_t* scales = nullptr;  // Of codes of 8 bits.
  // Codes of 8 bits are rounded as kernel::Rounding says.
  bool is_stochastic = false;
  std::uint64_t key = 0;
};

// Adds the values that such numbers encode to `values`.
using Addition = Rounding;

// Whether kernels run on the device that is current: an old driver, or a GPU for which none has
// been built, gives an error.
using Probe = int (*)();
using Select = int (*)(const Selection* selection, void* stream);
using Round = int (*)(const Rounding* rounding, void* stream);
using Add = int (*)(const Addition* addition, void* stream);

// The names under which the library of our kernels exports them; they change with the declarations
// above. Only that library needs nvcc to be built, and the CUDA runtime.
#define STRETTO_CUDA_REDUCE stretto_cuda_reduce_2
#define STRETTO_CUDA_PROBE stretto_cuda_probe_3
#define STRETTO_CUDA_SELECT stretto_cuda_select_3
#define STRETTO_CUDA_ROUND stretto_cuda_round_4
#define STRETTO_CUDA_ADD stretto_cuda_add_4
inline constexpr const char* kReduce = "stretto_cuda_reduce_2";
inline constexpr const char* kProbe = "stretto_cuda_probe_3";
inline constexpr const char* kSelect = "stretto_cuda_select_3";
inline constexpr const char* kRound = "stretto_cuda_round_4";
inline constexpr const char* kAdd = "stretto_cuda_add_4";

}  // namespace stretto::cuda
