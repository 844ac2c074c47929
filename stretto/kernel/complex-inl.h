// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Products of complex numbers; sums of them are sums of twice as many reals. Included once per SIMD
// target, so the guard toggles instead of being `#pragma once`.
#if defined(STRETTO_KERNEL_COMPLEX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_KERNEL_COMPLEX_INL_H_
#undef STRETTO_KERNEL_COMPLEX_INL_H_
#else
#define STRETTO_KERNEL_COMPLEX_INL_H_
#endif

#include <complex>
#include <cstddef>

#include "hwy/highway.h"
#include "stretto/kernel/combine-inl.h"
#include "stretto/kernel/format-inl.h"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class V>
struct ComplexVector {
  V real;
  V imaginary;
};

// A format of format-inl.h whose values are the real and the imaginary parts, taken apart.
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
  // Always through the cache: no target interleaves on the way past it, and who multiplies complex
  // numbers by the gigabyte is yet to be met.
  static HWY_INLINE void store(Register value, Out* to, bool /*stream*/) {
    hn::StoreInterleaved2(value.real, value.imaginary, Parts(), reinterpret_cast<T*>(to));
  }
};

// (a + bi)(c + di) = (ac - bd) + (ad + bc)i, and no special cases.
struct ComplexProduct {
  template <class V>
  static HWY_INLINE ComplexVector<V> combine(ComplexVector<V> left, ComplexVector<V> right) {
    const auto ac = Product::combine(left.real, right.real);
    const auto bd = Product::combine(left.imaginary, right.imaginary);
    const auto ad = Product::combine(left.real, right.imaginary);
    const auto bc = Product::combine(left.imaginary, right.real);
    const auto bd_or_0 = yield_to_nan(ac, bd);
    const auto bc_or_0 = yield_to_nan(ad, bc);
    return {hn::Sub(yield_to_right(ac, bd_or_0), bd_or_0),
            hn::Add(yield_to_right(ad, bc_or_0), bc_or_0)};
  }

 private:
  // The left operand too is zero where the other decides about NaN. That changes no result. But
  // what is added is then no product, and no compiler can merge the two into an instruction that
  // rounds once, which only some targets have.
  template <class V>
  static HWY_INLINE V yield_to_right(V left, V right) {
    return yield_to_nan(right, left);
  }
};

}  // namespace stretto::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STRETTO_KERNEL_COMPLEX_INL_H_
