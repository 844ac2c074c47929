// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// One pass over memory, for a format and an operation. Included once per SIMD target, so the guard
// toggles instead of being `#pragma once`.
#if defined(STRETTO_KERNEL_PASS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_KERNEL_PASS_INL_H_
#undef STRETTO_KERNEL_PASS_INL_H_
#else
#define STRETTO_KERNEL_PASS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "stretto/base/fetch_to_write.h"
#include "stretto/kernel/combine-inl.h"
#include "stretto/kernel/few-inl.h"
#include "stretto/kernel/format-inl.h"
#include "stretto/kernel/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class Format, class Op>
class PassLoop {
  using Source = typename Format::Source;
  using Out = typename Format::Out;
  using Value = typename Format::Value;
  using Register = typename Format::Register;
  using Division =
      std::conditional_t<hwy::IsSame<Value, double>(), Divisor<double>, Divisor<float>>;

  static constexpr std::size_t kElements = Format::kElements;
  // Registers that are written to one output before the next output. Several registers spread the
  // cost of the loops over more bytes, which helps while the buffers are in a cache: two lines are
  // a third to a half faster than one register. Only sums on current processors use several,
  // because all other cases would double the time to compile this layer.
  static constexpr bool kIsFrequent = hwy::IsSame<Op, Sum>() &&
                                      !hwy::IsSame<Source, MixedSource>() &&
                                      HWY_TARGET != HWY_SSE4 && HWY_TARGET != HWY_SCALAR;
  static constexpr std::size_t kRegisters =
      kIsFrequent ? std::min<std::size_t>(4, 2 * kLineBytes / (kElements * sizeof(Out))) : 1;
  static constexpr std::size_t kStep = kRegisters * kElements;
  // Steps on 16-bit floats are first tried without the handling of NaN, which is a third of the
  // work, and repeated with it if a NaN turns up. Other steps have so little work that the check
  // would cost as much as it saves.
  using QuickOp =
      std::conditional_t<kIsFrequent && hwy::IsFloat<Value>() && sizeof(Out) < sizeof(Value),
                         SumOfNumbers, Op>;

 public:
  static void run(const Pass& pass) {
    if constexpr (kHasFewElements<Format>) {
      using Few = FewElements<Value, Op, Division>;
      if (Few::fits(pass)) return Few::run(pass);
    }
    run_by_lines(pass);
  }

 private:
  static void run_by_lines(const Pass& pass) {
    Buffers buffers{{}, pass.input_count, pass.outputs, pass.output_count, pass.output_offset};
    for (std::size_t j = 0; j < pass.input_count; ++j) {
      buffers.inputs[j] = Source::of(pass.inputs[j], (pass.partial_inputs >> j & 1) != 0);
    }
    const Division division(pass.divisor);
    const std::size_t head = std::min(pass.count, elements_to_line(buffers));
    const std::size_t tail = head + (pass.count - head) / kStep * kStep;
    const bool stream = pass.non_temporal && lines_match(buffers, head);
    const std::size_t ends[] = {head, tail, pass.count};
    std::size_t first = 0;
    for (const std::size_t last : ends) {
      if (first < last) part(buffers, division, first, last, stream && first == head);
      first = last;
    }
  }

  struct Buffers {
    Source inputs[kPassInputs];
    std::size_t input_count;
    void* const* outputs;
    std::size_t output_count;
    std::size_t output_offset;

    HWY_INLINE Out* output(std::size_t k) const {
      return static_cast<Out*>(outputs[k]) + output_offset;
    }
  };

  // The number of elements before the next cache line of the first output.
  static std::size_t elements_to_line(const Buffers& buffers) {
    const auto address = reinterpret_cast<std::uintptr_t>(buffers.output(0));
    return (kLineBytes - address % kLineBytes) % kLineBytes / sizeof(Out);
  }

  // Whether element `first` starts a cache line in all outputs: non-temporal stores must be
  // aligned.
  static bool lines_match(const Buffers& buffers, std::size_t first) {
    for (std::size_t k = 0; k < buffers.output_count; ++k) {
      const auto address = reinterpret_cast<std::uintptr_t>(buffers.output(k) + first);
      if (address % kLineBytes != 0) return false;
    }
    return true;
  }

  // Evaluates the part of the canonical tree over those inputs [kFirst, kFirst + kWidth) that
  // exist. It is the tree over kPassInputs inputs without the missing ones: if there is no right
  // operand, the left one is the result. So one loop serves any number of inputs, and its branches
  // are well predicted. Two inputs have a loop of their own; see body_of_two().
  template <class Operation, int kPart, std::size_t kFirst, std::size_t kWidth>
  static HWY_INLINE auto subtree(const Buffers& buffers, std::size_t i) {
    if constexpr (kWidth == 1) {
      return Format::template load<kPart>(buffers.inputs[kFirst], i);
    } else {
      constexpr std::size_t kHalf = kWidth / 2;
      const auto left = subtree<Operation, kPart, kFirst, kHalf>(buffers, i);
      if (buffers.input_count <= kFirst + kHalf) return left;
      const auto right = subtree<Operation, kPart, kFirst + kHalf, kHalf>(buffers, i);
      return Operation::combine(left, right);
    }
  }

  template <class Operation, int kPart, class AnyDivision>
  static HWY_INLINE auto value(const Buffers& buffers, const AnyDivision& division, std::size_t i) {
    const auto combined = subtree<Operation, kPart, 0, kPassInputs>(buffers, i);
    if constexpr (hwy::IsFloat<Value>()) {
      return division.divide(combined);
    } else {
      return combined;
    }
  }

  // Computes one register. For SumOfNumbers, adds all values to `seen`, which tells whether one is
  // NaN.
  template <class Operation, class AnyDivision, class Seen>
  static HWY_INLINE Register result(const Buffers& buffers, const AnyDivision& division,
                                    std::size_t i, Seen& seen) {
    constexpr bool kAreNumbers = hwy::IsSame<Operation, SumOfNumbers>();
    const auto first = value<Operation, 0>(buffers, division, i);
    if constexpr (kAreNumbers) seen = hn::Add(seen, first);
    if constexpr (Format::kParts == 1) {
      return Format::template pack<kAreNumbers>(first);
    } else {
      const auto second = value<Operation, 1>(buffers, division, i);
      if constexpr (kAreNumbers) seen = hn::Add(seen, second);
      return Format::template pack<kAreNumbers>(first, second);
    }
  }

  // All outputs but the first belong to other ranks, and mostly are inputs, too. Their cache lines
  // are fetched with the intent to write, instead of for reading first and for ownership later.
  // Saves a tenth of the time at 4 MiB, and less for smaller sizes.
  static constexpr std::size_t kAhead = 2048 / sizeof(Out);
  static HWY_INLINE void fetch_step_to_write(const Out* to) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(to);
    for (std::size_t at = 0; at < kStep * sizeof(Out); at += kLineBytes) fetch_to_write(bytes + at);
  }

  // Combines kStep elements. Returns false, and writes nothing, if they must be combined by Op
  // itself.
  template <class Operation, class AnyDivision>
  static HWY_INLINE bool step(const Buffers& buffers, const AnyDivision& division, std::size_t i,
                              std::size_t last, bool stream) {
    Register registers[kRegisters];
    const hn::ScalableTag<Value> lanes;
    auto seen = hn::Zero(lanes);
    HWY_UNROLL(4)
    for (std::size_t r = 0; r < kRegisters; ++r) {
      registers[r] = result<Operation>(buffers, division, i + r * kElements, seen);
    }
    if constexpr (hwy::IsSame<Operation, SumOfNumbers>()) {
      // Infinities of both signs look like a NaN as well, which only costs time.
      if (!hn::AllFalse(lanes, hn::IsNaN(seen))) return false;
    }
    Out* const own = buffers.output(0) + i;
    HWY_UNROLL(4)
    for (std::size_t r = 0; r < kRegisters; ++r) {
      Format::store(registers[r], own + r * kElements, stream);
    }
    for (std::size_t k = 1; k < buffers.output_count; ++k) {
      Out* const to = buffers.output(k) + i;
      if (!stream && i + kAhead < last) fetch_step_to_write(to + kAhead);
      HWY_UNROLL(4)
      for (std::size_t r = 0; r < kRegisters; ++r) {
        Format::store(registers[r], to + r * kElements, stream);
      }
    }
    return true;
  }

  static HWY_NOINLINE void careful_step(Buffers buffers, const Division division, std::size_t i,
                                        std::size_t last, bool stream) {
    step<Op>(buffers, division, i, last, stream);
  }

  // Combines the elements [first, last), a multiple of kStep. Arguments are passed by value:
  // otherwise the compiler would have to assume that the stores change them, and would load them
  // again after each store.
  static HWY_NOINLINE void body(Buffers buffers, const Division division, std::size_t first,
                                std::size_t last, bool stream) {
    for (std::size_t i = first; i < last; i += kStep) {
      if (!step<QuickOp>(buffers, division, i, last, stream)) {
        careful_step(buffers, division, i, last, stream);
      }
    }
  }

  // The same for two inputs and kOutputs outputs. It makes no decision at run time that is known at
  // compile time: the fewer instructions, the more lines the processor fetches at the same time.
  // Saves a fifth of the time if lines come from another core.
  template <std::size_t kOutputs>
  static HWY_NOINLINE void body_of_two(Buffers buffers, const Division division, std::size_t first,
                                       std::size_t last, bool /*stream*/) {
    void* const outputs[] = {buffers.outputs[0], buffers.outputs[kOutputs - 1]};
    Buffers two = buffers;
    two.input_count = 2;
    two.outputs = outputs;
    two.output_count = kOutputs;
    for (std::size_t i = first; i < last; i += kStep) {
      if (!step<QuickOp>(two, division.exact(), i, last, false)) {
        careful_step(buffers, division, i, last, false);
      }
    }
  }

  static auto body_for(const Buffers& buffers, const Division& division, bool stream) {
    auto* found = &body;
    if constexpr (kIsFrequent) {
      const bool is_of_two = buffers.input_count == 2 && division.has_exact_inverse && !stream;
      if (is_of_two && buffers.output_count == 1) found = &body_of_two<1>;
      if (is_of_two && buffers.output_count == 2) found = &body_of_two<2>;
    }
    return found;
  }

  // Combines the elements [first, last). If they are not whole steps, which happens before and
  // after the whole lines, they are copied to a buffer first: vectors that reach past the end of a
  // buffer could touch an unmapped page.
  static void part(const Buffers& buffers, const Division& division, std::size_t first,
                   std::size_t last, bool stream) {
    constexpr std::size_t kRoom = std::max(kStep, kLineBytes / sizeof(Out));
    alignas(kLineBytes) std::byte rooms[kPassInputs][kRoom * Source::kMaxElementBytes];
    alignas(kLineBytes) Out room[kRoom];
    void* const output = room;
    Buffers copies{{}, buffers.input_count, &output, 1, 0};
    const std::size_t count = last - first;
    const std::size_t rounded = (count + kStep - 1) / kStep * kStep;
    const bool by_copy = count % kStep != 0;
    for (std::size_t j = 0; by_copy && j < buffers.input_count; ++j) {
      const Source& source = buffers.inputs[j];
      const std::size_t bytes = count * source.element_bytes();
      std::memcpy(rooms[j], source.element(first), bytes);
      std::memset(rooms[j] + bytes, 0, (rounded - count) * source.element_bytes());
      copies.inputs[j] = Source::of(rooms[j], source.is_partial());
    }
    if (by_copy) {
      body_for(copies, division, false)(copies, division, 0, rounded, false);
    } else {
      body_for(buffers, division, stream)(buffers, division, first, last, stream);
    }
    for (std::size_t k = 0; by_copy && k < buffers.output_count; ++k) {
      std::memcpy(buffers.output(k) + first, room, count * sizeof(Out));
    }
  }
};

}  // namespace stretto::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STRETTO_KERNEL_PASS_INL_H_
