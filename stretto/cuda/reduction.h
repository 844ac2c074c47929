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
    return static_cast<T>(std::uint64_t{value} / static_cast<std::uint64_t>(divisor));
  } else {
    return static_cast<T>(std::int64_t{value} / divisor);
  }
}
template <class Float>
STRETTO_ON_DEVICE ComplexNumber<Float> divide(ComplexNumber<Float> value, int divisor) {
  return {divide(value.real, divisor), divide(value.imaginary, divisor)};
}

// Formats: how elements lie in memory, and the values that are combined.

template <class T>
struct Plain {
  using Out = T;
  static STRETTO_ON_DEVICE T load(const Operands& operands, int input, std::size_t i) {
    return static_cast<const T*>(operands.inputs[input])[i];
  }
  static STRETTO_ON_DEVICE Out pack(T value) { return value; }
};

// Whatever is not zero is true, and is written as one.
struct Boolean : Plain<std::uint8_t> {
  static STRETTO_ON_DEVICE std::uint8_t load(const Operands& operands, int input, std::size_t i) {
    return Plain<std::uint8_t>::load(operands, input, i) != 0 ? 1 : 0;
  }
};

// Numbers of 16 bits, combined in f32; inputs may be partial results, and so may the output.
template <class Narrow, class OutType>
struct Widened {
  using Out = OutType;
  static STRETTO_ON_DEVICE float load(const Operands& operands, int input, std::size_t i) {
    if ((operands.partial_inputs >> input & 1) != 0) {
      return static_cast<const float*>(operands.inputs[input])[i];
    }
    const auto value = static_cast<float>(static_cast<const Narrow*>(operands.inputs[input])[i]);
    // As the host's conversions of the two types do.
    return std::is_same_v<Narrow, Half> && is_nan(value) ? quiet(value) : value;
  }
  static STRETTO_ON_DEVICE Out pack(float value) { return static_cast<Out>(value); }
};

// The canonical tree over inputs [kFirst, kFirst + kWidth) of those that there are.
template <class Format, class Op, int kFirst, int kWidth>
STRETTO_ON_DEVICE auto subtree(const Operands& operands, std::size_t i) {
  if constexpr (kWidth == 1) {
    return Format::load(operands, kFirst, i);
  } else {
    constexpr int kHalf = kWidth / 2;
    const auto left = subtree<Format, Op, kFirst, kHalf>(operands, i);
    if (operands.input_count <= kFirst + kHalf) return left;
    return Op::combine(left, subtree<Format, Op, kFirst + kHalf, kHalf>(operands, i));
  }
}

// Element i of the result.
template <class Format, class Op>
STRETTO_ON_DEVICE typename Format::Out reduce_element(const Operands& operands, std::size_t i) {
  const auto value = subtree<Format, Op, 0, kInputsMax>(operands, i);
  return Format::pack(divide(value, operands.divisor));
}

}  // namespace stretto::cuda
