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
#include "stretto/kernel/combine-inl.h"
#include "stretto/kernel/complex-inl.h"
#include "stretto/kernel/format-inl.h"
#include "stretto/kernel/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Division of floating-point values by a number of ranks. For powers of two, which are common, the
// product with the inverse is the same number and several times as fast.
template <class T>
struct Divisor {
  explicit Divisor(int number)
      : none(number == 1),
        has_exact_inverse((number & (number - 1)) == 0),
        value(static_cast<T>(number)),
        inverse(T{1} / static_cast<T>(number)) {}

  template <class V>
  HWY_INLINE V divide(V dividend) const {
    const hn::DFromV<V> d;
    if (none) return dividend;
    if (has_exact_inverse) return hn::Mul(dividend, hn::Set(d, inverse));
    return hn::Div(dividend, hn::Set(d, value));
  }
  template <class V>
  HWY_INLINE ComplexVector<V> divide(ComplexVector<V> dividend) const {
    return {divide(dividend.real), divide(dividend.imaginary)};
  }

  bool none;
  bool has_exact_inverse;
  T value;
  T inverse;
};

// A cache line or less, of elements that are combined as they are. Whole vectors would need copies
// of that little, which take several times as long; here 8 bytes are loaded and stored at a time,
// as they often have just been written. The same operations on narrower vectors: the same bits.
template <class Format>
inline constexpr bool kHasFewElements = false;
template <class T>
inline constexpr bool kHasFewElements<Plain<T>> = sizeof(T) >= 4;

template <class T, class Op, class Division>
class FewElements {
 public:
  static HWY_INLINE bool fits(const Pass& pass) { return pass.count <= kLineBytes / sizeof(T); }

  static void run(const Pass& pass) {
    const Division division(pass.divisor);
    std::size_t i = 0;
    for (; i + hn::MaxLanes(Pair()) <= pass.count; i += hn::MaxLanes(Pair())) {
      combine<Pair>(pass, division, i);
    }
    for (; i < pass.count; ++i) combine<One>(pass, division, i);
  }

 private:
  using Pair = hn::CappedTag<T, 8 / sizeof(T)>;
  using One = hn::CappedTag<T, 1>;

  template <class Lanes>
  static HWY_INLINE void combine(const Pass& pass, const Division& division, std::size_t i) {
    auto value = subtree<Lanes, 0, kPassInputs>(pass, i);
    if constexpr (hwy::IsFloat<T>()) value = division.divide(value);
    for (std::size_t k = 0; k < pass.output_count; ++k) {
      hn::StoreU(value, Lanes(), static_cast<T*>(pass.outputs[k]) + pass.output_offset + i);
    }
  }

  // See PassLoop::subtree().
  template <class Lanes, std::size_t kFirst, std::size_t kWidth>
  static HWY_INLINE hn::Vec<Lanes> subtree(const Pass& pass, std::size_t i) {
    if constexpr (kWidth == 1) {
      return hn::LoadU(Lanes(), static_cast<const T*>(pass.inputs[kFirst]) + i);
    } else {
      constexpr std::size_t kHalf = kWidth / 2;
      const auto left = subtree<Lanes, kFirst, kHalf>(pass, i);
      if (pass.input_count <= kFirst + kHalf) return left;
      return Op::combine(left, subtree<Lanes, kFirst + kHalf, kHalf>(pass, i));
    }
  }
};

template <class Format, class Op>
class PassLoop {
  using Source = typename Format::Source;
  using Out = typename Format::Out;
  using Value = typename Format::Value;
  using Register = typename Format::Register;
  using Division =
      std::conditional_t<hwy::IsSame<Value, double>(), Divisor<double>, Divisor<float>>;

  static constexpr std::size_t kElements = Format::kElements;
  // Registers that are written to one output before the next output's turn. Several spread the cost
  // of the loops over more bytes, which shows as long as the buffers are in a cache: two lines are
  // a third to half faster than one register. Only sums on today's processors get them, as all
  // others would double the time to compile this layer.
  static constexpr bool kIsFrequent = hwy::IsSame<Op, Sum>() &&
                                      !hwy::IsSame<Source, MixedSource>() &&
                                      HWY_TARGET != HWY_SSE4 && HWY_TARGET != HWY_SCALAR;
  static constexpr std::size_t kRegisters =
      kIsFrequent ? std::min<std::size_t>(4, 2 * kLineBytes / (kElements * sizeof(Out))) : 1;
  static constexpr std::size_t kStep = kRegisters * kElements;
  // The number of inputs that has a loop of its own; 0: none.
  static constexpr std::size_t kOftenInputs = kIsFrequent ? 2 : 0;

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

  // Elements before the first output's next cache line.
  static std::size_t elements_to_line(const Buffers& buffers) {
    const auto address = reinterpret_cast<std::uintptr_t>(buffers.output(0));
    return (kLineBytes - address % kLineBytes) % kLineBytes / sizeof(Out);
  }

  // Whether all outputs start a cache line at element `first`: non-temporal stores must be aligned.
  static bool lines_match(const Buffers& buffers, std::size_t first) {
    for (std::size_t k = 0; k < buffers.output_count; ++k) {
      const auto address = reinterpret_cast<std::uintptr_t>(buffers.output(k) + first);
      if (address % kLineBytes != 0) return false;
    }
    return true;
  }

  // The part of the canonical tree over the inputs [kFirst, kFirst + kWidth) that exist. The tree
  // is that of kPassInputs inputs without the missing ones: an absent right operand leaves the left
  // one. So one loop serves every number of inputs, and its branches are predicted; two have a loop
  // of their own, see body().
  template <int kPart, std::size_t kFirst, std::size_t kWidth>
  static HWY_INLINE auto subtree(const Buffers& buffers, std::size_t i) {
    if constexpr (kWidth == 1) {
      return Format::template load<kPart>(buffers.inputs[kFirst], i);
    } else {
      constexpr std::size_t kHalf = kWidth / 2;
      const auto left = subtree<kPart, kFirst, kHalf>(buffers, i);
      if (buffers.input_count <= kFirst + kHalf) return left;
      return Op::combine(left, subtree<kPart, kFirst + kHalf, kHalf>(buffers, i));
    }
  }

  template <int kPart>
  static HWY_INLINE auto value(const Buffers& buffers, const Division& division, std::size_t i) {
    const auto combined = subtree<kPart, 0, kPassInputs>(buffers, i);
    if constexpr (hwy::IsFloat<Value>()) {
      return division.divide(combined);
    } else {
      return combined;
    }
  }

  static HWY_INLINE Register result(const Buffers& buffers, const Division& division,
                                    std::size_t i) {
    const auto first = value<0>(buffers, division, i);
    if constexpr (Format::kParts == 1) {
      return Format::pack(first);
    } else {
      return Format::pack(first, value<1>(buffers, division, i));
    }
  }

  // Outputs behind the first belong to other ranks, and mostly are inputs, too: their lines come at
  // once to be written, instead of to be read first and to be owned later. A tenth of the time at 4
  // MiB, less for less.
  static constexpr std::size_t kAhead = 2048 / sizeof(Out);
  static HWY_INLINE void fetch_to_write(const Out* to) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(to);
    for (std::size_t at = 0; at < kStep * sizeof(Out); at += kLineBytes) {
#if HWY_ARCH_X86
      // The builtin fetches to read, unless the compiler is told that the instruction exists.
      // Processors that do not have it take it for nothing.
      asm volatile("prefetchw %0" : : "m"(bytes[at]));
#else
      __builtin_prefetch(bytes + at, 1, 3);
#endif
    }
  }

  // Elements [first, last), a multiple of kStep. What it works on comes by value: the compiler
  // cannot know that the stores do not change it, and would fetch it again after each of them.
  // `kInputs`, unless it is 0, says how many inputs there are, which then costs no instruction: in
  // the cache, a tenth of the time of two.
  template <std::size_t kInputs>
  static HWY_NOINLINE void body(Buffers buffers, const Division division, std::size_t first,
                                std::size_t last, bool stream) {
    if constexpr (kInputs != 0) buffers.input_count = kInputs;
    Out* const own = buffers.output(0);
    for (std::size_t i = first; i < last; i += kStep) {
      Register registers[kRegisters];
      HWY_UNROLL(4)
      for (std::size_t r = 0; r < kRegisters; ++r) {
        registers[r] = result(buffers, division, i + r * kElements);
      }
      HWY_UNROLL(4)
      for (std::size_t r = 0; r < kRegisters; ++r) {
        Format::store(registers[r], own + i + r * kElements, stream);
      }
      for (std::size_t k = 1; k < buffers.output_count; ++k) {
        Out* const to = buffers.output(k) + i;
        if (!stream && i + kAhead < last) fetch_to_write(to + kAhead);
        HWY_UNROLL(4)
        for (std::size_t r = 0; r < kRegisters; ++r) {
          Format::store(registers[r], to + r * kElements, stream);
        }
      }
    }
  }

  // Elements [first, last). Less than whole steps, which is what remains on either side of the
  // lines, goes by way of copies: vectors that reach past the end of a buffer could touch a page
  // that is not there. One call of body() serves both, as it is large.
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
    const auto run = buffers.input_count == 2 ? body<kOftenInputs> : body<0>;
    run(by_copy ? copies : buffers, division, by_copy ? 0 : first, by_copy ? rounded : last,
        stream && !by_copy);
    for (std::size_t k = 0; by_copy && k < buffers.output_count; ++k) {
      std::memcpy(buffers.output(k) + first, room, count * sizeof(Out));
    }
  }
};

}  // namespace stretto::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STRETTO_KERNEL_PASS_INL_H_
