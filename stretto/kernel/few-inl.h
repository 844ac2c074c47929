// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The loop of a pass over at most a cache line. Included once per SIMD target, so the guard toggles
// instead of being `#pragma once`.
#if defined(STRETTO_KERNEL_FEW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_KERNEL_FEW_INL_H_
#undef STRETTO_KERNEL_FEW_INL_H_
#else
#define STRETTO_KERNEL_FEW_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"
#include "stretto/kernel/combine-inl.h"
#include "stretto/kernel/format-inl.h"
#include "stretto/kernel/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// For at most a cache line of elements that are combined without conversion. Whole vectors would
// need copies of so few elements, which take several times as long. Here 8 bytes are loaded and
// stored at a time, because they often have just been written that way. The operations are the same
// as on wider vectors, and so are the bits of the result.
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

}  // namespace stretto::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STRETTO_KERNEL_FEW_INL_H_
