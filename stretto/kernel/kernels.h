// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

#include "stretto/base/dtype.h"
#include "stretto/base/reduce_op.h"

// The vector loops of reduce() and copy(), compiled once per SIMD target. For use inside this layer
// only.
namespace stretto::kernel {

// The number of inputs that one pass combines in registers. More inputs are combined in groups of
// this size.
inline constexpr std::size_t kPassInputs = 8;

// Size of a cache line on processors with non-temporal stores.
inline constexpr std::size_t kLineBytes = 64;

// One pass over `count` elements: every input is read once, every output written once. An output
// may be one of the inputs. Pointers need the alignment of their element.
struct Pass {
  const void* const* inputs = nullptr;
  std::size_t input_count = 0;  // 1 to kPassInputs.
  unsigned partial_inputs = 0;  // Bit i: inputs[i] holds f32. For find_mixed_reduction() only.
  void* const* outputs = nullptr;
  std::size_t output_count = 0;
  std::size_t output_offset = 0;  // Elements of each output to skip; of inputs, none.
  std::size_t count = 0;
  int divisor = 1;            // Divides floating-point results; integer kernels ignore it.
  bool non_temporal = false;  // The caller fences, once, when all of its passes are done.
};

using Kernel = void (*)(const Pass&);

// Returns the kernel that combines inputs of `dtype` into outputs of `dtype`, in the canonical
// order of reduce.h. Kernels exist for the pairs below, to which reduce() maps all others. Null for
// other pairs.
//   boolean, u8                         bit_and, bit_or, bit_xor
//   unsigned integers, floating point   sum, product, min, max (but not floats of 8 bits)
//   signed integers                     min, max
//   complex                             product
Kernel find_reduction(DType dtype, ReduceOp op);

// The same for inputs of f32 or `dtype` (f16 or bf16), as Pass::partial_inputs says, and outputs of
// `output_dtype`, which is one of the two.
Kernel find_mixed_reduction(DType dtype, ReduceOp op, DType output_dtype);

}  // namespace stretto::kernel
