// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "stretto/base/half.h"
#include "stretto/cuda/arithmetic.h"

// The part of a reduction that one thread of a device does, by the operations of arithmetic.h.
namespace stretto::cuda {

inline constexpr int kInputsMax = 16;
inline constexpr int kOutputsMax = 16;

// The buffers of a reduction, as a kernel gets them.
struct Operands {
  const void* inputs[kInputsMax];
  void* outputs[kOutputsMax];
  unsigned partial_inputs = 0;  // Bit i: input i has f32 where the others have 16 bits.
  int input_count = 0;
  int output_count = 0;
  int divisor = 1;
  std::size_t count = 0;
  double factor = 1;  // If not 1, only multiplies the one input by it.
};

// Elements that a thread takes at once: at most 16 bytes of them are one access to memory.
template <class T, int kCount>
struct alignas(kCount == 1               ? alignof(T)
               : kCount * sizeof(T) < 16 ? kCount * sizeof(T)
                                         : 16) Pack {
  T values[kCount];
};

// Pack i of a buffer.
template <class T, int kCount>
STRETTO_ON_DEVICE Pack<T, kCount> pack_of(const void* buffer, std::size_t i) {
  return static_cast<const Pack<T, kCount>*>(buffer)[i];
}

// The results of `function` for each element of a pack.
template <int kCount, class Function>
STRETTO_ON_DEVICE auto for_each(const Function& function) {
  Pack<decltype(function(0)), kCount> result;
  for (int k = 0; k < kCount; ++k) result.values[k] = function(k);
  return result;
}

// Formats: how elements lie in memory, and the values that are combined. Code with kOfNumbers may
// assume that no value is a NaN, and no input a partial result.

template <class T>
struct Plain {
  using In = T;
  using Out = T;
  template <int kCount, bool kOfNumbers>
  static STRETTO_ON_DEVICE Pack<T, kCount> load(const Operands& operands, int input,
                                                std::size_t i) {
    return pack_of<T, kCount>(operands.inputs[input], i);
  }
  static STRETTO_ON_DEVICE T value(T loaded) { return loaded; }
  template <bool kOfNumbers>
  static STRETTO_ON_DEVICE Out stored(T value) {
    return value;
  }
};

// Whatever is not zero is true, and is written as one.
struct Boolean : Plain<std::uint8_t> {
  static STRETTO_ON_DEVICE std::uint8_t value(std::uint8_t loaded) { return loaded != 0 ? 1 : 0; }
};

// Conversions with the host's results for numbers. A device has instructions for them, but they
// give a NaN other bits than the host does.
STRETTO_ON_DEVICE float widened_number(Half value) {
#ifdef __CUDA_ARCH__
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
#else
  return static_cast<float>(value);
#endif
}
STRETTO_ON_DEVICE float widened_number(BFloat16 value) { return static_cast<float>(value); }

template <class Out>
STRETTO_ON_DEVICE Out narrowed_number(float value) {
#ifdef __CUDA_ARCH__
  std::uint16_t bits;
  if constexpr (std::is_same_v<Out, Half>) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return Half::from_bits(bits);
  }
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<Out, BFloat16>) {
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return BFloat16::from_bits(bits);
  }
#endif
#endif
  return static_cast<Out>(value);
}

// Numbers of 16 bits, combined in f32; inputs may be partial results, and so may the output.
template <class Narrow, class OutType>
struct Widened {
  using In = Narrow;
  using Out = OutType;
  template <int kCount, bool kOfNumbers>
  static STRETTO_ON_DEVICE auto load(const Operands& operands, int input, std::size_t i) {
    if constexpr (kOfNumbers) {
      return pack_of<Narrow, kCount>(operands.inputs[input], i);
    } else {
      if ((operands.partial_inputs >> input & 1) != 0) {
        return pack_of<float, kCount>(operands.inputs[input], i);
      }
      const auto narrow = pack_of<Narrow, kCount>(operands.inputs[input], i);
      return for_each<kCount>([&](int k) {
        const auto value = static_cast<float>(narrow.values[k]);
        // As the host's conversions of the two types do.
        return std::is_same_v<Narrow, Half> && is_nan(value) ? quiet(value) : value;
      });
    }
  }
  static STRETTO_ON_DEVICE float value(float loaded) { return loaded; }
  static STRETTO_ON_DEVICE float value(Narrow loaded) { return widened_number(loaded); }
  template <bool kOfNumbers>
  static STRETTO_ON_DEVICE Out stored(float value) {
    if constexpr (kOfNumbers) return narrowed_number<Out>(value);
    return static_cast<Out>(value);
  }
};

template <class Op, bool kOfNumbers, class T>
STRETTO_ON_DEVICE T combined(T left, T right) {
  if constexpr (kOfNumbers) return Op::of_numbers(left, right);
  if constexpr (!kOfNumbers) return Op::combine(left, right);
}
template <class Op, bool kOfNumbers, class T, int kCount>
STRETTO_ON_DEVICE Pack<T, kCount> combined(const Pack<T, kCount>& left,
                                           const Pack<T, kCount>& right) {
  return for_each<kCount>(
      [&](int k) { return combined<Op, kOfNumbers>(left.values[k], right.values[k]); });
}

// The canonical tree over inputs [first, first + kWidth), as far as there are so many.
template <class Format, class Op, int kCount, bool kOfNumbers, int kWidth>
STRETTO_ON_DEVICE auto subtree(const Operands& operands, int first, std::size_t i) {
  if constexpr (kWidth == 1) {
    const auto loaded = Format::template load<kCount, kOfNumbers>(operands, first, i);
    return for_each<kCount>([&](int k) { return Format::value(loaded.values[k]); });
  } else {
    constexpr int kHalf = kWidth / 2;
    const auto left = subtree<Format, Op, kCount, kOfNumbers, kHalf>(operands, first, i);
    if (operands.input_count <= first + kHalf) return left;
    return combined<Op, kOfNumbers>(
        left, subtree<Format, Op, kCount, kOfNumbers, kHalf>(operands, first + kHalf, i));
  }
}

// The tree over four inputs. Numbers of 16 bits are all loaded before any is widened: so more loads
// are in flight, in fewer registers.
template <class Format, class Op, int kCount, bool kOfNumbers>
STRETTO_ON_DEVICE auto tree_of_four(const Operands& operands, int first, std::size_t i) {
  using Loaded = decltype(Format::template load<kCount, kOfNumbers>(operands, 0, i));
  using Value = decltype(Format::value(Loaded().values[0]));
  if constexpr (sizeof(Value) * kCount == sizeof(Loaded)) {
    return subtree<Format, Op, kCount, kOfNumbers, 4>(operands, first, i);
  } else {
    const int count = operands.input_count - first;
    Loaded loaded[4];
    for (int j = 0; j < 4; ++j) {
      if (j < count) loaded[j] = Format::template load<kCount, kOfNumbers>(operands, first + j, i);
    }
    const auto pair = [&](const Loaded& left, const Loaded& right, bool has_right) {
      return for_each<kCount>([&](int k) {
        const auto value = Format::value(left.values[k]);
        if (!has_right) return value;
        return combined<Op, kOfNumbers>(value, Format::value(right.values[k]));
      });
    };
    const auto left = pair(loaded[0], loaded[1], count > 1);
    if (count <= 2) return left;
    return combined<Op, kOfNumbers>(left, pair(loaded[2], loaded[3], count > 3));
  }
}

template <class T, int kCount>
STRETTO_ON_DEVICE Pack<T, kCount> divided(const Pack<T, kCount>& sums, int divisor) {
  if (divisor == 1) return sums;
  return for_each<kCount>([&](int k) { return divide(sums.values[k], divisor); });
}

// Pack i of the inputs, combined by fours and divided: with code for sixteen, a compiler takes
// three times as long.
template <class Format, class Op, int kCount, bool kOfNumbers>
STRETTO_ON_DEVICE auto quotients(const Operands& operands, std::size_t i) {
  static_assert(kInputsMax == 16);
  auto left = tree_of_four<Format, Op, kCount, kOfNumbers>(operands, 0, i);
  auto right = left;
  for (int first = 4; first < operands.input_count; first += 4) {
    const auto four = tree_of_four<Format, Op, kCount, kOfNumbers>(operands, first, i);
    if (first == 4) left = combined<Op, kOfNumbers>(left, four);
    if (first == 8) right = four;
    if (first == 12) right = combined<Op, kOfNumbers>(right, four);
  }
  if (operands.input_count > 8) left = combined<Op, kOfNumbers>(left, right);
  return divided(left, operands.divisor);
}
template <class Format, class Op, int kCount>
STRETTO_ON_DEVICE_RARELY auto quotients_of_many(const Operands& operands, std::size_t i) {
  return quotients<Format, Op, kCount, true>(operands, i);
}

// Element i of the result, whatever the inputs hold.
template <class Format, class Op>
STRETTO_ON_DEVICE_RARELY Pack<typename Format::Out, 1> exact_element(const Operands& operands,
                                                                     std::size_t i) {
  const auto result = quotients<Format, Op, 1, false>(operands, i);
  return {Format::template stored<false>(result.values[0])};
}

// The same for pack i by the device's own instructions, as if no NaN came of numbers. For 16 bits,
// code for more than four inputs is not inlined: it would take registers that many threads need.
template <class Format, class Op, int kCount>
STRETTO_ON_DEVICE auto quick_quotients(const Operands& operands, std::size_t i) {
  if constexpr (sizeof(typename Format::In) ==
                sizeof(decltype(Format::value(typename Format::In())))) {
    return quotients<Format, Op, kCount, true>(operands, i);
  } else {
    if (operands.input_count > 4) return quotients_of_many<Format, Op, kCount>(operands, i);
    return divided(tree_of_four<Format, Op, kCount, true>(operands, 0, i), operands.divisor);
  }
}

// Quick results as they are stored. A NaN in an input, or one that is made on the way, shows in
// them; then the pack is computed again by `exact`, element by element.
template <class Format, class Value, int kCount, class Exact>
STRETTO_ON_DEVICE auto stored_pack(const Pack<Value, kCount>& quick, bool is_quick,
                                   const Exact& exact) {
  for (int k = 0; k < kCount && is_quick; ++k) is_quick = !is_nan(quick.values[k]);
  return for_each<kCount>([&](int k) {
    return is_quick ? Format::template stored<true>(quick.values[k]) : exact(k).values[0];
  });
}

// Pack i of the result.
template <class Format, class Op, int kCount = 1>
STRETTO_ON_DEVICE auto reduce_pack(const Operands& operands, std::size_t i) {
  using Value = decltype(Format::value(typename Format::In()));
  constexpr bool kMayMakeNan = std::is_floating_point_v<Value> && requires(float number) {
    Op::of_numbers(number, number);
  };
  if constexpr (kMayMakeNan) {
    const bool is_quick = operands.partial_inputs == 0;
    Pack<Value, kCount> results;
    if (is_quick) results = quick_quotients<Format, Op, kCount>(operands, i);
    return stored_pack<Format>(results, is_quick, [&](int k) {
      return exact_element<Format, Op>(operands, i * kCount + k);
    });
  } else {
    const auto results = quotients<Format, Op, kCount, false>(operands, i);
    return for_each<kCount>(
        [&](int k) { return Format::template stored<false>(results.values[k]); });
  }
}

// Whether elements of that format are multiplied by a factor.
template <class Format, class Op>
inline constexpr bool kTakesFactor = std::is_same_v<Op, Product>&&
    std::is_floating_point_v<decltype(Format::value(typename Format::In()))>;

// The one input, times the factor, which is not rounded to 16 bits first.
template <class Format, bool kOfNumbers, int kCount>
STRETTO_ON_DEVICE auto products(const Operands& operands, std::size_t i) {
  const auto loaded = Format::template load<kCount, kOfNumbers>(operands, 0, i);
  return for_each<kCount>([&](int k) {
    const auto value = Format::value(loaded.values[k]);
    return combined<Product, kOfNumbers>(value, static_cast<decltype(value)>(operands.factor));
  });
}
template <class Format>
STRETTO_ON_DEVICE_RARELY Pack<typename Format::Out, 1> exact_product(const Operands& operands,
                                                                     std::size_t i) {
  return {Format::template stored<false>(products<Format, false, 1>(operands, i).values[0])};
}

// Pack i of the one input, times the factor.
template <class Format, int kCount = 1>
STRETTO_ON_DEVICE auto scaled_pack(const Operands& operands, std::size_t i) {
  return stored_pack<Format>(products<Format, true, kCount>(operands, i), true, [&](int k) {
    return exact_product<Format>(operands, i * kCount + k);
  });
}

}  // namespace stretto::cuda
