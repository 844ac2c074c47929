// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The operations on two vectors, and the division of the result. Included once per SIMD target, so
// the guard toggles instead of being `#pragma once`.
#if defined(STRETTO_KERNEL_COMBINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_KERNEL_COMBINE_INL_H_
#undef STRETTO_KERNEL_COMBINE_INL_H_
#else
#define STRETTO_KERNEL_COMBINE_INL_H_
#endif

#include <complex>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "stretto/kernel/format-inl.h"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Returns `right`, with zero in the lanes in which `left` is NaN. If both operands are NaN, the
// hardware returns the NaN of its first operand. But a compiler may swap the operands of a
// commutative operation, differently for each target. After this function at most one operand is
// NaN.
template <class V>
HWY_INLINE V yield_to_nan(V left, V right) {
  return hn::IfThenZeroElse(hn::IsNaN(left), right);
}

struct Sum {
  template <class V>
  static HWY_INLINE V combine(V left, V right) {
    if constexpr (hwy::IsFloat<hn::TFromV<V>>()) {
      return hn::Add(left, yield_to_nan(left, right));
    } else {
      return hn::Add(left, right);
    }
  }
};

// The same as Sum if no result is NaN.
struct SumOfNumbers {
  template <class V>
  static HWY_INLINE V combine(V left, V right) {
    return hn::Add(left, right);
  }
};

// No instruction set multiplies bytes. So even and odd bytes are multiplied in 16-bit lanes; the
// low byte of a product depends only on the low bytes of the factors.
template <class V>
HWY_INLINE V multiply_bytes(V left, V right) {
#if HWY_TARGET == HWY_SCALAR
  return V(static_cast<std::uint8_t>(left.raw * right.raw));
#else
  const hn::DFromV<V> bytes;
  const hn::RepartitionToWide<decltype(bytes)> words;
  const auto a = hn::BitCast(words, left);
  const auto b = hn::BitCast(words, right);
  const auto even = hn::And(hn::Mul(a, b), hn::Set(words, 0xFF));
  const auto odd = hn::ShiftLeft<8>(hn::Mul(hn::ShiftRight<8>(a), hn::ShiftRight<8>(b)));
  return hn::BitCast(bytes, hn::Or(even, odd));
#endif
}

struct Product {
  template <class V>
  static HWY_INLINE V combine(V left, V right) {
    using T = hn::TFromV<V>;
    if constexpr (hwy::IsFloat<T>()) {
      return hn::Mul(left, yield_to_nan(left, right));
    } else if constexpr (sizeof(T) == 1) {
      return multiply_bytes(left, right);
    } else {
      return hn::Mul(left, right);
    }
  }
};

// The min and max of the instruction sets differ for NaN and for zeros of different sign. So both
// are written out: a NaN wins, the left one first; between equal operands the left one wins.
struct Min {
  template <class V>
  static HWY_INLINE V combine(V left, V right) {
    if constexpr (hwy::IsFloat<hn::TFromV<V>>()) {
      const auto take_left = hn::Or(hn::IsNaN(left), hn::Le(left, right));
      return hn::IfThenElse(take_left, left, right);
    } else {
      return hn::Min(left, right);
    }
  }
};

struct Max {
  template <class V>
  static HWY_INLINE V combine(V left, V right) {
    if constexpr (hwy::IsFloat<hn::TFromV<V>>()) {
      const auto take_left = hn::Or(hn::IsNaN(left), hn::Ge(left, right));
      return hn::IfThenElse(take_left, left, right);
    } else {
      return hn::Max(left, right);
    }
  }
};

struct BitAnd {
  template <class V>
  static HWY_INLINE V combine(V left, V right) {
    return hn::And(left, right);
  }
};

struct BitOr {
  template <class V>
  static HWY_INLINE V combine(V left, V right) {
    return hn::Or(left, right);
  }
};

struct BitXor {
  template <class V>
  static HWY_INLINE V combine(V left, V right) {
    return hn::Xor(left, right);
  }
};

// A vector of complex numbers, for products. Their sums are computed as sums of twice as many
// reals.

template <class V>
struct ComplexVector {
  // Constructors that the compiler generates belong to no SIMD target, and g++ on Arm does not
  // inline the constructor of a vector into them.
  HWY_INLINE ComplexVector() {}  // NOLINT: as vectors, without values.
  HWY_INLINE ComplexVector(V r, V i) : real(r), imaginary(i) {}

  V real;
  V imaginary;
};

// A format (see format-inl.h) of complex numbers: a register has the real and the imaginary parts
// in separate vectors.
template <class T>
struct Complex {
  using Source = TypedSource<std::complex<T>>;
  using Value = T;
  using Out = std::complex<T>;
  using Parts = hn::ScalableTag<T>;
  using Register = ComplexVector<hn::Vec<Parts>>;
  static constexpr std::size_t kElements = hn::MaxLanes(Parts());
  static constexpr int kParts = 1;

  template <int kPart>
  static HWY_INLINE Register load(Source source, std::size_t i) {
    Register result;
    hn::LoadInterleaved2(Parts(), reinterpret_cast<const T*>(source.data + i), result.real,
                         result.imaginary);
    return result;
  }
  template <bool /*are_numbers*/>
  static HWY_INLINE Register pack(Register value) {
    return value;
  }
  // Always stores through the cache: no target has a non-temporal store that interleaves, and
  // products of gigabytes of complex numbers are not expected.
  static HWY_INLINE void store(Register value, Out* to, bool /*stream*/) {
    hn::StoreInterleaved2(value.real, value.imaginary, Parts(), reinterpret_cast<T*>(to));
  }
};

// (a + bi)(c + di) = (ac - bd) + (ad + bc)i, without special cases.
struct ComplexProduct {
  template <class V>
  static HWY_INLINE ComplexVector<V> combine(ComplexVector<V> left, ComplexVector<V> right) {
    const auto ac = Product::combine(left.real, right.real);
    const auto bd = Product::combine(left.imaginary, right.imaginary);
    const auto ad = Product::combine(left.real, right.imaginary);
    const auto bc = Product::combine(left.imaginary, right.real);
    return {hn::Sub(ac, yield_to_nan(ac, bd)), Sum::combine(ad, bc)};
  }
};

// Division of floating-point values by a number of ranks. For powers of two, which are common,
// multiplying by the inverse gives the same result and is several times as fast.
template <class T>
struct ExactDivisor {
  template <class V>
  HWY_INLINE V divide(V dividend) const {
    return hn::Mul(dividend, hn::Set(hn::DFromV<V>(), inverse));
  }

  T inverse;
};

template <class T>
struct Divisor {
  explicit Divisor(int number)
      : none(number == 1),
        has_exact_inverse((number & (number - 1)) == 0),
        value(static_cast<T>(number)),
        inverse(T{1} / static_cast<T>(number)) {}

  template <class V>
  HWY_INLINE V divide(V dividend) const {
    if (none) return dividend;
    if (has_exact_inverse) return exact().divide(dividend);
    return hn::Div(dividend, hn::Set(hn::DFromV<V>(), value));
  }
  template <class V>
  HWY_INLINE ComplexVector<V> divide(ComplexVector<V> dividend) const {
    return {divide(dividend.real), divide(dividend.imaginary)};
  }
  // Only for results of two or more inputs: a multiplication, even by 1, makes a signaling NaN
  // quiet.
  ExactDivisor<T> exact() const { return {inverse}; }

  bool none;
  bool has_exact_inverse;
  T value;
  T inverse;
};

}  // namespace stretto::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STRETTO_KERNEL_COMBINE_INL_H_
