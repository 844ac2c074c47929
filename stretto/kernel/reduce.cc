// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/kernel/reduce.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "hwy/cache_control.h"
#include "stretto/kernel/copy.h"
#include "stretto/kernel/kernels.h"

namespace stretto::kernel {
namespace {

// One page. Shorter blocks cost up to a fifth of the memory bandwidth, because prefetching works
// best on long runs. With longer blocks, the partial results of kPassInputs groups would not fit
// into the first-level cache.
constexpr std::size_t kBlockBytes = 4096;

using Room = std::byte[kBlockBytes];

// Note [shared memory]
//
// An ordinary store first fetches its cache line from the core that has read it last. The
// processor's copy instruction, which the C library uses for large copies where it is fast, takes
// over whole lines instead. This is two to five times as fast if an output is memory that ranks
// share (though not on all machines: see docs/decisions/0054). So results are written in pieces
// that stay in the first-level cache, and copied from there: with Store::shared from a buffer on
// the stack to all outputs, otherwise from the first output to the others. This is not done where
// every output is an input, because its lines have just been fetched.
constexpr std::size_t kCopiedBytes = 8192;
constexpr std::size_t kPieceBytes = 2 * kCopiedBytes;

// The kernel for a reduction, and how many of the kernel's elements make one element of the
// reduction: bitwise operations work on bytes, sums of complex numbers on reals.
struct Lowered {
  Kernel kernel;
  std::size_t lanes_per_element;
};

// Sums and products wrap, so they are computed on unsigned integers.
DType without_sign(DType dtype) {
  switch (dtype) {
    case DType::i8:
      return DType::u8;
    case DType::i16:
      return DType::u16;
    case DType::i32:
      return DType::u32;
    case DType::i64:
      return DType::u64;
    default:
      return dtype;
  }
}

Lowered lower(DType dtype, ReduceOp op) {
  if (op == ReduceOp::mean) op = ReduceOp::sum;
  if (dtype == DType::boolean) {
    if (op == ReduceOp::sum || op == ReduceOp::max) op = ReduceOp::bit_or;
    if (op == ReduceOp::product || op == ReduceOp::min) op = ReduceOp::bit_and;
    return {find_reduction(dtype, op), 1};
  }
  if (op == ReduceOp::bit_and || op == ReduceOp::bit_or || op == ReduceOp::bit_xor) {
    return {find_reduction(DType::u8, op), size_bytes(dtype)};
  }
  if (is_complex(dtype) && op == ReduceOp::sum) {
    return {find_reduction(dtype == DType::c64 ? DType::f32 : DType::f64, op), 2};
  }
  const bool sign_matters = op == ReduceOp::min || op == ReduceOp::max;
  return {find_reduction(sign_matters ? dtype : without_sign(dtype), op), 1};
}

// For inputs some of which are, or may be, partial results in f32.
Lowered lower_mixed(const Reduction& reduction, DType output_dtype) {
  const ReduceOp op = reduction.op == ReduceOp::mean ? ReduceOp::sum : reduction.op;
  return {find_mixed_reduction(reduction.dtype, op, output_dtype), 1};
}

// For copying one input to several outputs, as bytes.
Lowered lower_copy(DType dtype) {
  return {find_reduction(DType::u8, ReduceOp::bit_or), size_bytes(dtype)};
}

bool has_partial_results(DType dtype) { return accumulation_dtype(dtype) != dtype; }

bool divides_integers(const Reduction& reduction) {
  const bool is_integer = !is_floating_point(reduction.dtype) && !is_complex(reduction.dtype);
  return reduction.divisor != 1 && is_integer;
}

Status check_dtype(const Reduction& reduction, DType dtype, std::string_view what) {
  if (dtype == reduction.dtype || dtype == accumulation_dtype(reduction.dtype)) return {};
  return status_of(StatusCode::invalid_argument, "reduction of {}: {} is {}", name(reduction.dtype),
                   what, name(dtype));
}

Status check(const Reduction& reduction) {
  if (!supports(reduction.op, reduction.dtype)) {
    return status_of(StatusCode::invalid_argument, "{} has no meaning for {}, which supports {}",
                     name(reduction.op), name(reduction.dtype), supported_ops(reduction.dtype));
  }
  if (reduction.inputs.empty() || reduction.outputs.empty()) {
    return status_of(StatusCode::invalid_argument, "reduction of {} inputs into {} outputs",
                     reduction.inputs.size(), reduction.outputs.size());
  }
  const bool can_divide = supports(ReduceOp::mean, reduction.dtype);
  if (reduction.divisor < 1 || (reduction.divisor > 1 && !can_divide)) {
    return status_of(StatusCode::invalid_argument, "{} of {} with divisor {}", name(reduction.op),
                     name(reduction.dtype), reduction.divisor);
  }
  for (const Input& input : reduction.inputs) {
    STRETTO_RETURN_IF_ERROR(check_dtype(reduction, input.dtype, "an input"));
  }
  return check_dtype(reduction, reduction.output_dtype, "the output");
}

// Whether every output is an input. Then its lines are in the cache when they are written, because
// they have just been read. Non-temporal stores would save nothing, and were measured to be up to
// twice as slow.
bool is_in_place(const Reduction& reduction) {
  const std::span<const Input> inputs = reduction.inputs;
  // Outputs are mostly in the order of the inputs, from any input on. So the next input is compared
  // first.
  std::size_t next = 0;
  return std::all_of(reduction.outputs.begin(), reduction.outputs.end(), [&](const void* output) {
    if (inputs[next].data != output) {
      const auto found = std::find_if(inputs.begin(), inputs.end(),
                                      [&](const Input& input) { return input.data == output; });
      if (found == inputs.end()) return false;
      next = static_cast<std::size_t>(found - inputs.begin());
    }
    if (++next == inputs.size()) next = 0;
    return true;
  });
}

template <class T, class Wide>
void divide(void* block, std::size_t count, int divisor) {
  T* const elements = static_cast<T*>(block);
  for (std::size_t i = 0; i < count; ++i) {
    elements[i] = static_cast<T>(Wide{elements[i]} / static_cast<Wide>(divisor));
  }
}

// Rounds towards zero. Divides one by one, because no target divides vectors of integers.
void divide_integers(DType dtype, void* block, std::size_t count, int divisor) {
  if (dtype == DType::u8) divide<std::uint8_t, int>(block, count, divisor);
  if (dtype == DType::i8) divide<std::int8_t, int>(block, count, divisor);
  if (dtype == DType::u16) divide<std::uint16_t, int>(block, count, divisor);
  if (dtype == DType::i16) divide<std::int16_t, int>(block, count, divisor);
  if (dtype == DType::u32) divide<std::uint32_t, std::uint32_t>(block, count, divisor);
  if (dtype == DType::i32) divide<std::int32_t, std::int32_t>(block, count, divisor);
  if (dtype == DType::u64) divide<std::uint64_t, std::uint64_t>(block, count, divisor);
  if (dtype == DType::i64) divide<std::int64_t, std::int64_t>(block, count, divisor);
}

Lowered lower_to_one_pass(const Reduction& reduction) {
  const DType dtype = reduction.output_dtype;
  const bool uniform = std::all_of(reduction.inputs.begin(), reduction.inputs.end(),
                                   [&](const Input& input) { return input.dtype == dtype; });
  return uniform ? lower(dtype, reduction.op) : lower_mixed(reduction, dtype);
}

// A reduction that does not fit into one pass. It runs block by block, in groups of kPassInputs
// inputs, with partial results on the stack. Eight aligned inputs are a subtree of the canonical
// tree, so groups of groups form the canonical tree.
class BlockReduction {
 public:
  BlockReduction(const Reduction& reduction, bool non_temporal)
      : reduction_(reduction),
        accumulation_(accumulation_dtype(reduction.dtype)),
        inner_(has_partial_results(reduction.dtype) ? lower_mixed(reduction, accumulation_)
                                                    : lower(reduction.dtype, reduction.op)),
        outer_(has_partial_results(reduction.dtype) ? lower_mixed(reduction, reduction.output_dtype)
                                                    : inner_),
        non_temporal_(non_temporal) {}

  void run() const {
    const std::size_t block_count = kBlockBytes / size_bytes(accumulation_);
    // The first block ends at a cache line of the first output, so that all other blocks write
    // whole lines.
    const auto address = reinterpret_cast<std::uintptr_t>(reduction_.outputs[0]);
    std::size_t length = block_count - address % kLineBytes / size_bytes(reduction_.output_dtype);
    for (std::size_t first = 0; first < reduction_.count; first += length, length = block_count) {
      length = std::min(length, reduction_.count - first);
      reduce_block({first, length});
    }
  }

 private:
  struct Block {
    std::size_t first;
    std::size_t length;
  };

  // The inputs [first, first + count): all inputs, or an aligned group, which is a subtree.
  struct InputRange {
    std::size_t first;
    std::size_t count;
  };

  struct Operand {
    const void* data;
    bool is_partial;
  };

  void reduce_block(Block block) const {
    const InputRange all{0, reduction_.inputs.size()};
    Pass pass{.outputs = reduction_.outputs.data(),
              .output_count = reduction_.outputs.size(),
              .output_offset = block.first * outer_.lanes_per_element,
              .divisor = reduction_.divisor,
              .non_temporal = non_temporal_};
    if (!divides_integers(reduction_)) return combine(outer_, all, block, pass);
    alignas(kLineBytes) Room room;
    void* const result = room;
    combine(inner_, all, block, {.outputs = &result, .output_count = 1});
    divide_integers(reduction_.dtype, room, block.length, reduction_.divisor);
    const Lowered copy = lower_copy(reduction_.dtype);
    const void* const input = room;
    pass.inputs = &input;
    pass.input_count = 1;
    pass.output_offset = block.first * copy.lanes_per_element;
    pass.count = block.length * copy.lanes_per_element;
    copy.kernel(pass);
  }

  // Combines a group of inputs for one block. `pass` gives the outputs; this function adds the
  // inputs.
  void combine(const Lowered& lowered, InputRange group, Block block, Pass pass) const {
    std::size_t width = 1;  // Inputs per operand of this pass.
    while (group.count > width * kPassInputs) width *= kPassInputs;
    alignas(kLineBytes) Room rooms[kPassInputs];
    const void* data[kPassInputs];
    for (std::size_t start = 0; start < group.count; start += width) {
      const InputRange part{group.first + start, std::min(width, group.count - start)};
      const Operand operand = evaluate(part, block, rooms[pass.input_count]);
      data[pass.input_count] = operand.data;
      if (operand.is_partial) pass.partial_inputs |= 1u << pass.input_count;
      ++pass.input_count;
    }
    pass.inputs = data;
    pass.count = block.length * lowered.lanes_per_element;
    lowered.kernel(pass);
  }

  // Where the value of a group lies: one input in its own buffer, the value of several in `room`.
  Operand evaluate(InputRange group, Block block, Room& room) const {
    if (group.count == 1) {
      const Input& input = reduction_.inputs[group.first];
      const auto* const data = static_cast<const std::byte*>(input.data);
      return {data + block.first * size_bytes(input.dtype), input.dtype != reduction_.dtype};
    }
    void* const output = room;
    combine(inner_, group, block, {.outputs = &output, .output_count = 1});
    return {room, true};
  }

  const Reduction& reduction_;
  DType accumulation_;
  Lowered inner_;  // Its output has the accumulation dtype.
  Lowered outer_;  // Its output has the output dtype.
  bool non_temporal_;
};

}  // namespace

Result<PreparedReduction> PreparedReduction::create(const Reduction& like) {
  STRETTO_RETURN_IF_ERROR(check(like));
  PreparedReduction prepared;
  prepared.like_ = like;
  prepared.like_.inputs = {};
  prepared.like_.outputs = {};
  prepared.element_bytes_ = like.outputs.size() * size_bytes(like.output_dtype);
  for (const Input& input : like.inputs) prepared.element_bytes_ += size_bytes(input.dtype);
  prepared.copies_one_ = like.inputs.size() == 1 && like.inputs[0].dtype == like.output_dtype &&
                         like.divisor == 1 && like.dtype != DType::boolean;
  if (like.inputs.size() > kPassInputs || divides_integers(like)) return prepared;
  for (std::size_t i = 0; i < like.inputs.size(); ++i) {
    if (like.inputs[i].dtype != like.dtype) prepared.partial_inputs_ |= 1u << i;
  }
  const Lowered lowered =
      prepared.copies_one_ ? lower_copy(like.output_dtype) : lower_to_one_pass(like);
  prepared.kernel_ = lowered.kernel;
  prepared.lanes_per_element_ = lowered.lanes_per_element;
  return prepared;
}

void PreparedReduction::run(std::size_t count, std::span<const Input> inputs,
                            std::span<void* const> outputs, std::size_t whole_count) const {
  if (count == 0) return;
  whole_count = std::max(count, whole_count);
  // Small reductions take less time than the decisions below.
  const bool is_small =
      element_bytes_ * whole_count <= kBlockBytes && like_.store == Store::automatic;
  if (kernel_ != nullptr && is_small) return run_in_one_pass(count, inputs, outputs, false);
  Reduction reduction = like_;
  reduction.count = count;
  reduction.inputs = inputs;
  reduction.outputs = outputs;
  const bool in_place = is_in_place(reduction);
  if (copies_one_ && in_place) return;
  const bool non_temporal = is_non_temporal(like_.store, element_bytes_ * whole_count) &&
                            (like_.store == Store::non_temporal || !in_place);
  const bool copies = (outputs.size() > 1 || like_.store == Store::shared) && !in_place &&
                      !non_temporal && count * size_bytes(like_.output_dtype) >= kCopiedBytes;
  if (kernel_ == nullptr) {
    BlockReduction(reduction, non_temporal).run();
  } else if (copies && like_.store == Store::shared) {
    alignas(kLineBytes) std::byte room[kPieceBytes];
    run_by_pieces(count, inputs, outputs, room);
  } else if (copies) {
    run_by_pieces(count, inputs, outputs, nullptr);
  } else {
    run_in_one_pass(count, inputs, outputs, non_temporal);
  }
  // The caller publishes the outputs with a release store. That does not order non-temporal stores,
  // which wait in separate buffers.
  if (non_temporal) hwy::FlushStream();
}

void PreparedReduction::run_in_one_pass(std::size_t count, std::span<const Input> inputs,
                                        std::span<void* const> outputs, bool non_temporal) const {
  const void* data[kPassInputs];
  for (std::size_t i = 0; i < inputs.size(); ++i) data[i] = inputs[i].data;
  kernel_({.inputs = data,
           .input_count = inputs.size(),
           .partial_inputs = partial_inputs_,
           .outputs = outputs.data(),
           .output_count = outputs.size(),
           .count = count * lanes_per_element_,
           .divisor = like_.divisor,
           .non_temporal = non_temporal});
}

// Reduces piece by piece into `room` or, if it is null, into the first output, and copies each
// piece from there to the other outputs.
void PreparedReduction::run_by_pieces(std::size_t count, std::span<const Input> inputs,
                                      std::span<void* const> outputs, void* room) const {
  const std::size_t output_bytes = size_bytes(like_.output_dtype);
  const std::size_t piece = kPieceBytes / output_bytes;
  Input pieces[kPassInputs];
  std::copy(inputs.begin(), inputs.end(), pieces);
  for (std::size_t first = 0; first < count; first += piece) {
    const std::size_t length = std::min(piece, count - first);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::size_t begin = first * size_bytes(inputs[i].dtype);
      pieces[i].data = static_cast<const std::byte*>(inputs[i].data) + begin;
    }
    void* const result =
        room != nullptr ? room : static_cast<std::byte*>(outputs[0]) + first * output_bytes;
    run_in_one_pass(length, std::span(pieces, inputs.size()), std::span(&result, 1), false);
    for (void* const output : outputs.subspan(room != nullptr ? 0 : 1)) {
      std::memcpy(static_cast<std::byte*>(output) + first * output_bytes, result,
                  length * output_bytes);
    }
  }
}

Status reduce(const Reduction& reduction) {
  Result<PreparedReduction> prepared = PreparedReduction::create(reduction);
  if (!prepared.ok()) return prepared.status();
  prepared->run(reduction.count, reduction.inputs, reduction.outputs);
  return {};
}

}  // namespace stretto::kernel
