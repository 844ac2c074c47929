// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/base/reduce_op.h"
#include "stretto/base/status.h"

namespace stretto::kernel {

struct Pass;

// A buffer to reduce. `dtype` is the reduction's dtype or, if the buffer holds a partial result,
// its accumulation dtype (f32 for f16 and bf16).
struct Input {
  const void* data = nullptr;
  DType dtype = DType::f32;
};

// How results are written. In all cases a release store after the call publishes them.
enum class Store {
  automatic,     // Through the cache, unless the call moves more than half of the last-level cache
                 // and has an output that is not an input.
  cached,        // Ordinary stores.
  non_temporal,  // Past the cache: for data that no core reads soon. Outputs at different offsets
                 // in a cache line, and products of complex numbers, are written with ordinary
                 // stores.
  shared,        // For memory that other cores have read and will read: see reduce.cc, Note [shared
                 // memory]. copy() treats it like `cached`.
};

struct Reduction {
  DType dtype = DType::f32;         // Of the elements that are reduced.
  DType output_dtype = DType::f32;  // `dtype`, or accumulation_dtype(dtype) for a partial result.
  ReduceOp op = ReduceOp::sum;      // mean counts as sum; see `divisor`.
  int divisor = 1;                  // Divides the reduced value: in a mean, the number of ranks.
  std::size_t count = 0;            // Elements of every input and output.
  std::span<const Input> inputs;    // At least one.
  std::span<void* const> outputs;   // At least one. All get the same bytes.
  Store store = Store::automatic;
};

// Reduces all inputs, element by element, into every output.
//
// Order: the canonical tree. reduce(0..n) is input 0 for n = 1, else combine(reduce(0..h),
// reduce(h..n)) with h the largest power of two below n: ((0 1)(2 3))((4 5)6) for seven inputs. An
// aligned group of 2^k inputs is one subtree, so algorithms that exchange partial results get the
// same bits as one call of this function. f16 and bf16 are widened to f32, combined in f32 and
// rounded (to nearest, ties to even) once, when the output is written. Integers wrap; their
// division rounds towards zero. A nonzero bool is true and is written as 1. Complex numbers are
// added and divided by parts, and multiplied by the textbook formula; every operation rounds.
//
// The bits are the same on every SIMD target, NaN included: if both operands are NaN, the left one
// wins. Sum and product make it quiet. Min and max return an operand unchanged; of equal operands,
// such as zeros of different sign, the left one. There is one exception: a NaN that an operation
// makes from numbers, such as infinity - infinity, is negative on x86 and positive on Arm. With one
// input, the same dtype and no divisor, the bits are copied, except for bool.
//
// An output may be one of the inputs (same address, same dtype). Buffers must not overlap
// otherwise. They need the alignment of their element only. Never allocates, never blocks; any
// thread. Fails (invalid_argument) if the operation has no meaning for the dtype, a dtype is
// neither `dtype` nor its accumulation dtype, there is no input or no output, or the divisor is
// below 1, or not 1 for bool. Then nothing is written.
Status reduce(const Reduction& reduction);

// A reduction that runs repeatedly on different buffers. It is checked, and its loop is looked up,
// only once.
class PreparedReduction {
 public:
  // `like` gives all parameters except the buffers and the count. Only the dtypes of its inputs and
  // the number of its outputs matter. Fails as reduce() does.
  static Result<PreparedReduction> create(const Reduction& like);
  // The parameters, without buffers, for code that runs the reduction in another way.
  const Reduction& like() const { return like_; }
  // Whether the reduction copies the bits of its one input to every output.
  bool copies_one() const { return copies_one_; }
  // Runs as reduce() does. `inputs` must have the dtypes, and `outputs` the number, given to
  // create(). If the call is a part of a reduction of `whole_count` elements, it chooses the store
  // for the whole.
  void run(std::size_t count, std::span<const Input> inputs, std::span<void* const> outputs,
           std::size_t whole_count = 0) const;
  // The same for a few cache lines at most and one output, which is written through the cache.
  void run_few(std::size_t count, std::span<const Input> inputs, void* output) const {
    if (kernel_ == nullptr) return run(count, inputs, std::span(&output, 1));
    run_in_one_pass(count, inputs, std::span(&output, 1), false);
  }

 private:
  PreparedReduction() = default;
  void run_in_one_pass(std::size_t count, std::span<const Input> inputs,
                       std::span<void* const> outputs, bool non_temporal) const;
  void run_by_pieces(std::size_t count, std::span<const Input> inputs,
                     std::span<void* const> outputs, void* room) const;

  Reduction like_;                 // Without buffers.
  std::size_t element_bytes_ = 0;  // Of one element of all inputs and outputs.
  unsigned partial_inputs_ = 0;
  bool copies_one_ = false;
  // The kernel, if the reduction fits into one pass; else null.
  void (*kernel_)(const Pass&) = nullptr;
  std::size_t lanes_per_element_ = 1;
};

// The SIMD targets that this machine can run, best first ("AVX3", "AVX2", "SSE4", "SCALAR"). Tests
// can select one of them; an empty name restores the automatic choice. Not for production: it
// affects all threads.
std::vector<std::string_view> available_targets();
Status use_target(std::string_view target);

}  // namespace stretto::kernel
