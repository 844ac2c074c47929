// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The operations on two vectors. Included once per SIMD target, so the guard toggles instead of
// being `#pragma once`.
#if defined(STRETTO_KERNEL_COMBINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_KERNEL_COMBINE_INL_H_
#undef STRETTO_KERNEL_COMBINE_INL_H_
#else
#define STRETTO_KERNEL_COMBINE_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// What `right` may be while `left` still decides about NaN: zero where `left` is NaN. With two NaNs
// the hardware returns its first operand's, but a compiler may swap the operands of a commutative
// operation, and does so differently from target to target. After this there is one NaN at most.
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

// What Sum is where no result is NaN.
struct SumOfNumbers {
  template <class V>
  static HWY_INLINE V combine(V left, V right) {
    return hn::Add(left, right);
  }
};

// No instruction set multiplies bytes: even and odd bytes go through 16-bit lanes, whose low byte
// depends on the low bytes of the factors only.
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

// The instruction sets disagree about NaN and about zeros of different sign in min and max, so both
// are spelled out: a NaN wins, the left one first, and the left operand wins between equals.
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

}  // namespace stretto::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STRETTO_KERNEL_COMBINE_INL_H_
