// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#ifdef __CUDACC__
#define STRETTO_ON_DEVICE __host__ __device__ __forceinline__
#define STRETTO_ON_DEVICE_RARELY __host__ __device__ __noinline__
#else
#define STRETTO_ON_DEVICE inline
#define STRETTO_ON_DEVICE_RARELY inline
#endif

// Operations on numbers in a thread of a device, with the same bits as in kernel/reduce.h, NaN
// included. They are plain C++, so that they can be compared with the host's where there is no
// device. A NaN that an operation makes of numbers is that of x86-64. Products and sums must not be
// contracted (-fmad=false).
namespace stretto::cuda {

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

// `result` of an operation on two operands. A NaN gets the host's bits: those of the first operand
// that is a NaN, or, if both are numbers, those of x86-64, which a device does not make.
template <class Float>
STRETTO_ON_DEVICE Float settled(Float result, Float left, Float right) {
  if (!is_nan(result)) return result;
  constexpr int kShift = std::numeric_limits<Float>::digits - 2;
  constexpr auto kMade = static_cast<BitsOf<Float>>(~BitsOf<Float>{0} << kShift);
  if (is_nan(left)) return quiet(left);
  return is_nan(right) ? quiet(right) : std::bit_cast<Float>(kMade);
}

// The type in which integers are added and multiplied, so that they wrap around; a device has none
// shorter.
template <class T>
using Wrapping = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

struct Sum {
  // The sum of two floats if it is no NaN.
  template <class Float>
  static STRETTO_ON_DEVICE Float of_numbers(Float left, Float right) {
    return left + right;
  }
  template <class T>
  static STRETTO_ON_DEVICE T combine(T left, T right) {
    if constexpr (std::is_floating_point_v<T>) {
      return settled(of_numbers(left, right), left, right);
    } else {
      return static_cast<T>(Wrapping<T>(left) + Wrapping<T>(right));
    }
  }
};

// A complex number; sums treat its parts as two reals instead.
template <class Float>
struct ComplexNumber {
  Float real;
  Float imaginary;
};

struct Product {
  template <class Float>
  static STRETTO_ON_DEVICE Float of_numbers(Float left, Float right) {
    return left * right;
  }
  template <class T>
  static STRETTO_ON_DEVICE T combine(T left, T right) {
    if constexpr (std::is_floating_point_v<T>) {
      return settled(of_numbers(left, right), left, right);
    } else {
      return static_cast<T>(Wrapping<T>(left) * Wrapping<T>(right));
    }
  }
  template <class Float>
  static STRETTO_ON_DEVICE ComplexNumber<Float> combine(ComplexNumber<Float> a,
                                                        ComplexNumber<Float> b) {
    const Float bd = combine(a.imaginary, b.imaginary);
    // A NaN is not negated. Sum decides which of two NaN is the result.
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
  if constexpr (std::is_floating_point_v<T>) {
    return is_nan(value) ? quiet(value) : value / static_cast<T>(divisor);
  } else if constexpr (std::is_unsigned_v<T>) {
    return static_cast<T>(Wrapping<T>{value} / static_cast<Wrapping<T>>(divisor));
  } else {
    return static_cast<T>(std::make_signed_t<Wrapping<T>>{value} / divisor);
  }
}
template <class Float>
STRETTO_ON_DEVICE ComplexNumber<Float> divide(ComplexNumber<Float> value, int divisor) {
  return {divide(value.real, divisor), divide(value.imaginary, divisor)};
}

}  // namespace stretto::cuda
