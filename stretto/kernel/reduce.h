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

// One of the buffers that are reduced. `dtype` is the reduction's dtype, or its accumulation dtype
// (f32 for f16 and bf16) where the buffer holds a partial result.
struct Input {
  const void* data = nullptr;
  DType dtype = DType::f32;
};

// How results are written. However it is, a release store after the call publishes them.
enum class Store {
  automatic,     // Through the cache, unless the call moves more than half of the last-level cache
                 // and has an output that is not an input.
  cached,        // Ordinary stores.
  non_temporal,  // Past the cache: right for data that nobody reads soon. Outputs that do not share
                 // their place in a cache line, and products of complex numbers, are written with
                 // ordinary stores.
  shared,        // For memory that other cores have read and will read: see reduce.cc, Note [shared
                 // memory]. A copy of such memory is an ordinary one.
};

struct Reduction {
  DType dtype = DType::f32;         // Of the elements that are reduced.
  DType output_dtype = DType::f32;  // `dtype`, or accumulation_dtype(dtype) for a partial result.
  ReduceOp op = ReduceOp::sum;      // mean counts as sum; see `divisor`.
  int divisor = 1;                  // The reduced value is divided by this: the ranks of a mean.
  std::size_t count = 0;            // Elements of every input and output.
  std::span<const Input> inputs;    // At least one.
  std::span<void* const> outputs;   // At least one. All get the same bytes.
  Store store = Store::automatic;
};

// Reduces all inputs, element by element, into every output.
//
// Order: the canonical tree. reduce(0..n) is input 0 for n = 1, else
// combine(reduce(0..h), reduce(h..n)) with h the largest power of two below n. So
// ((0 1)(2 3))((4 5)6) for seven inputs, and an aligned group of 2^k inputs is one subtree, which
// is why algorithms that exchange partial results reach the same bits as this function does in one
// go. f16 and bf16 are widened to f32, combined in f32 and rounded (to nearest, ties to even) once,
// when the output is written. Integers wrap; their division rounds towards zero. A bool that is not
// zero is true, and is written as one. Of complex numbers, real and imaginary parts are added and
// divided apart, and multiplied by the textbook formula, with every operation rounded by itself.
//
// Same bits on every SIMD target, NaN included: the left operand's NaN wins if both are NaN. Sum
// and product make it quiet; min and max return an operand as it is, the left one if both are
// equal, as zeros of different sign are. Only a NaN that an operation makes of numbers, as infinity
// - infinity, is negative on x86 and positive on Arm. One input, same dtype, no divisor: a copy of
// its bits, but for bool.
//
// An output may be one of the inputs (same address, same dtype). Buffers may not overlap otherwise.
// No alignment is asked beyond that of the element. Never allocates, never blocks; any thread.
// Fails (invalid_argument) if the operation has no meaning for the dtype, a dtype is neither
// `dtype` nor its accumulation dtype, there is no input or no output, or the divisor is below 1, or
// not 1 for bool; then nothing is written.
Status reduce(const Reduction& reduction);

// A reduction that is made again and again, on other buffers: checked, and its loop found, once.
class PreparedReduction {
 public:
  // `like` says all but the buffers and the count: of its inputs only the dtypes matter, and of its
  // outputs the number. Fails as reduce() does.
  static Result<PreparedReduction> create(const Reduction& like);
  // What it was made for, without buffers: for whoever carries it out in another way.
  const Reduction& like() const { return like_; }
  // Whether every output gets the bits of the one input.
  bool copies_one() const { return copies_one_; }
  // As reduce(). `inputs` have the dtypes, `outputs` the number, of those it was made for. Where
  // this is a part of a reduction of `whole_count` elements, it stores as the whole would.
  void run(std::size_t count, std::span<const Input> inputs, std::span<void* const> outputs,
           std::size_t whole_count = 0) const;
  // The same of a few lines at most, into the one output, which is written through the cache.
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
  std::size_t element_bytes_ = 0;  // Of all inputs and outputs.
  unsigned partial_inputs_ = 0;
  bool copies_one_ = false;
  // Of what fits into one pass; null: it does not.
  void (*kernel_)(const Pass&) = nullptr;
  std::size_t lanes_per_element_ = 1;
};

// The SIMD targets that this machine can run, best first ("AVX3", "AVX2", "SSE4", "SCALAR"); and a
// way for tests to run on one of them. An empty name gives the choice back. Not for production: it
// affects all threads.
std::vector<std::string_view> available_targets();
Status use_target(std::string_view target);

}  // namespace stretto::kernel
