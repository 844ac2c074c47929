// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "stretto/base/half.h"

#ifdef __CUDACC__
#define STRETTO_ON_DEVICE __host__ __device__ __forceinline__
#else
#define STRETTO_ON_DEVICE inline
#endif

// What a thread of a device does in a reduction: the same bits as kernel/reduce.h has, NaN
// included, in plain C++, so that this arithmetic is compared with the host's where there is no
// device. A NaN that an operation makes of numbers is that of x86-64. Contraction of products and
// sums has to be off (-fmad=false).
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
};

template <class Float>
STRETTO_ON_DEVICE bool is_nan(Float value) {
  return value != value;
}

template <class Float>
using BitsOf = std::conditional_t<sizeof(Float) == 4, std::uint32_t, std::uint64_t>;

template <class Float>
STRETTO_ON_DEVICE Float quiet(Float value) {
  const auto quiet_bit = BitsOf<Float>{1} << (std::numeric_limits<Float>::digits - 2);
  return std::bit_cast<Float>(std::bit_cast<BitsOf<Float>>(value) | quiet_bit);
}

// What an operation on numbers has given; on a device a NaN of it has other bits.
template <class Float>
STRETTO_ON_DEVICE Float settled(Float value) {
  constexpr int kShift = std::numeric_limits<Float>::digits - 2;
  constexpr auto kMade = static_cast<BitsOf<Float>>(~BitsOf<Float>{0} << kShift);
  return is_nan(value) ? std::bit_cast<Float>(kMade) : value;
}

struct Sum {
  template <class T>
  static STRETTO_ON_DEVICE T combine(T left, T right) {
    if constexpr (std::is_floating_point_v<T>) {
      if (is_nan(left)) return quiet(left);
      if (is_nan(right)) return quiet(right);
      return settled(left + right);
    } else {
      return static_cast<T>(std::uint64_t(left) + std::uint64_t(right));
    }
  }
};

// Two parts of a complex number, which a sum treats as two reals.
template <class Float>
struct ComplexNumber {
  Float real;
  Float imaginary;
};

struct Product {
  template <class T>
  static STRETTO_ON_DEVICE T combine(T left, T right) {
    if constexpr (std::is_floating_point_v<T>) {
      if (is_nan(left)) return quiet(left);
      if (is_nan(right)) return quiet(right);
      return settled(left * right);
    } else {
      return static_cast<T>(std::uint64_t(left) * std::uint64_t(right));
    }
  }
  template <class Float>
  static STRETTO_ON_DEVICE ComplexNumber<Float> combine(ComplexNumber<Float> a,
                                                        ComplexNumber<Float> b) {
    const Float bd = combine(a.imaginary, b.imaginary);
    // A NaN is not negated: which of the two wins is what a sum says.
    return {Sum::combine(combine(a.real, b.real), is_nan(bd) ? bd : -bd),
            Sum::combine(combine(a.real, b.imaginary), combine(a.imaginary, b.real))};
  }
};

struct Min {
  template <class T>
  static STRETTO_ON_DEVICE T combine(T left, T right) {
    if constexpr (std::is_floating_point_v<T>) {
      return is_nan(left) || left <= right ? left : right;
    } else {
      return left < right ? left : right;
    }
  }
};

struct Max {
  template <class T>
  static STRETTO_ON_DEVICE T combine(T left, T right) {
    if constexpr (std::is_floating_point_v<T>) {
      return is_nan(left) || left >= right ? left : right;
    } else {
      return left > right ? left : right;
    }
  }
};

struct BitAnd {
  template <class T>
  static STRETTO_ON_DEVICE T combine(T left, T right) {
    return static_cast<T>(left & right);
  }
};

struct BitOr {
  template <class T>
  static STRETTO_ON_DEVICE T combine(T left, T right) {
    return static_cast<T>(left | right);
  }
};

struct BitXor {
  template <class T>
  static STRETTO_ON_DEVICE T combine(T left, T right) {
    return static_cast<T>(left ^ right);
  }
};

template <class T>
STRETTO_ON_DEVICE T divide(T value, int divisor) {
  if (divisor == 1) return value;
  if constexpr (std::is_floating_point_v<T>) {
    return is_nan(value) ? quiet(value) : value / static_cast<T>(divisor);
  } else if constexpr (std::is_unsigned_v<T>) {
    using Wide = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
    return static_cast<T>(Wide{value} / static_cast<Wide>(divisor));
  } else {
    using Wide = std::conditional_t<sizeof(T) == 8, std::int64_t, std::int32_t>;
    return static_cast<T>(Wide{value} / divisor);
  }
}
template <class Float>
STRETTO_ON_DEVICE ComplexNumber<Float> divide(ComplexNumber<Float> value, int divisor) {
  return {divide(value.real, divisor), divide(value.imaginary, divisor)};
}

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

// What a function gives for each element.
template <int kCount, class Function>
STRETTO_ON_DEVICE auto for_each(const Function& function) {
  Pack<decltype(function(0)), kCount> result;
  for (int k = 0; k < kCount; ++k) result.values[k] = function(k);
  return result;
}

// Formats: how elements lie in memory, and the values that are combined.

template <class T>
struct Plain {
  using In = T;
  using Out = T;
  template <int kCount>
  static STRETTO_ON_DEVICE Pack<T, kCount> load(const Operands& operands, int input,
                                                std::size_t i) {
    return pack_of<T, kCount>(operands.inputs[input], i);
  }
  static STRETTO_ON_DEVICE Out narrowed(T value) { return value; }
};

// Whatever is not zero is true, and is written as one.
struct Boolean : Plain<std::uint8_t> {
  template <int kCount>
  static STRETTO_ON_DEVICE auto load(const Operands& operands, int input, std::size_t i) {
    const auto bytes = Plain::load<kCount>(operands, input, i);
    return for_each<kCount>([&](int k) { return std::uint8_t{bytes.values[k] != 0}; });
  }
};

// Numbers of 16 bits, combined in f32; inputs may be partial results, and so may the output.
template <class Narrow, class OutType>
struct Widened {
  using In = Narrow;
  using Out = OutType;
  template <int kCount>
  static STRETTO_ON_DEVICE Pack<float, kCount> load(const Operands& operands, int input,
                                                    std::size_t i) {
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
  static STRETTO_ON_DEVICE Out narrowed(float value) { return static_cast<Out>(value); }
};

// The canonical tree over inputs [kFirst, kFirst + kWidth) of those that there are.
template <class Format, class Op, int kCount, int kFirst, int kWidth>
STRETTO_ON_DEVICE auto subtree(const Operands& operands, std::size_t i) {
  if constexpr (kWidth == 1) {
    return Format::template load<kCount>(operands, kFirst, i);
  } else {
    constexpr int kHalf = kWidth / 2;
    const auto left = subtree<Format, Op, kCount, kFirst, kHalf>(operands, i);
    if (operands.input_count <= kFirst + kHalf) return left;
    const auto right = subtree<Format, Op, kCount, kFirst + kHalf, kHalf>(operands, i);
    return for_each<kCount>([&](int k) { return Op::combine(left.values[k], right.values[k]); });
  }
}

// Pack i of the result.
template <class Format, class Op, int kCount = 1>
STRETTO_ON_DEVICE auto reduce_pack(const Operands& operands, std::size_t i) {
  const auto sums = subtree<Format, Op, kCount, 0, kInputsMax>(operands, i);
  return for_each<kCount>(
      [&](int k) { return Format::narrowed(divide(sums.values[k], operands.divisor)); });
}

}  // namespace stretto::cuda
