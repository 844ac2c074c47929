// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Division of what has been summed. Included once per SIMD target, so the guard
// toggles instead of being `#pragma once`.
#if defined(STRETTO_KERNEL_DIVISOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_KERNEL_DIVISOR_INL_H_
#undef STRETTO_KERNEL_DIVISOR_INL_H_
#else
#define STRETTO_KERNEL_DIVISOR_INL_H_
#endif

#include "hwy/highway.h"
#include "stretto/kernel/complex-inl.h"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Division of floating-point values by a number of ranks. For powers of two, which are common, the
// product with the inverse is the same number and several times as fast.
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
  // For sums of two and more only: a product, if only with one, makes a signaling NaN a quiet one.
  ExactDivisor<T> exact() const { return {inverse}; }

  bool none;
  bool has_exact_inverse;
  T value;
  T inverse;
};

}  // namespace stretto::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STRETTO_KERNEL_DIVISOR_INL_H_
