// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// How elements lie in memory, and the vectors they are combined in. Included once per SIMD target,
// so the guard toggles instead of being `#pragma once`.
#if defined(STRETTO_KERNEL_FORMAT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_KERNEL_FORMAT_INL_H_
#undef STRETTO_KERNEL_FORMAT_INL_H_
#else
#define STRETTO_KERNEL_FORMAT_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "stretto/kernel/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A format defines, for one register that is written:
//   Source         an input: made from the fields of Pass; has the size of its elements
//   Value          the type in which elements are combined
//   Out            the type of the elements that are written
//   Register       the vector(s) written at once; kElements is its number of elements
//   kParts         the vectors of values per register: two where f32 becomes 16 bits
//   load<part>     loads the values of one part of the elements from index i on
//   pack           makes the register from its parts; with `are_numbers`, none of them is NaN
//   store          writes a register, past the cache if `stream`, which needs whole lines

// Registers that are one vector of elements.
template <class T>
struct OneVector {
  using Out = T;
  using Lanes = hn::ScalableTag<T>;
  using Register = hn::Vec<Lanes>;
  static constexpr std::size_t kElements = hn::MaxLanes(Lanes());

  static HWY_INLINE void store(Register elements, Out* to, bool stream) {
    if (stream) {
      hn::Stream(elements, Lanes(), to);
    } else {
      hn::StoreU(elements, Lanes(), to);
    }
  }
};

// Elements of one type.
template <class T>
struct TypedSource {
  static constexpr std::size_t kMaxElementBytes = sizeof(T);

  static HWY_INLINE TypedSource of(const void* data, bool /*is_partial*/) {
    return {static_cast<const T*>(data)};
  }
  HWY_INLINE const void* element(std::size_t i) const { return data + i; }
  HWY_INLINE std::size_t element_bytes() const { return sizeof(T); }
  HWY_INLINE bool is_partial() const { return false; }

  const T* data;
};

// Elements of 16 bits, or f32 where the input is a partial result.
struct MixedSource {
  static constexpr std::size_t kMaxElementBytes = sizeof(float);

  static HWY_INLINE MixedSource of(const void* data, bool is_partial) { return {data, is_partial}; }
  HWY_INLINE const void* element(std::size_t i) const {
    return static_cast<const std::byte*>(data) + i * element_bytes();
  }
  HWY_INLINE std::size_t element_bytes() const { return partial ? sizeof(float) : 2; }
  HWY_INLINE bool is_partial() const { return partial; }

  const void* data;
  bool partial;
};

template <class T>
struct Plain : OneVector<T> {
  using Source = TypedSource<T>;
  using Value = T;
  using Lanes = hn::ScalableTag<T>;
  static constexpr int kParts = 1;

  template <int kPart>
  static HWY_INLINE hn::Vec<Lanes> load(Source source, std::size_t i) {
    return hn::LoadU(Lanes(), source.data + i);
  }
  template <bool /*are_numbers*/>
  static HWY_INLINE hn::Vec<Lanes> pack(hn::Vec<Lanes> value) {
    return value;
  }
};

// One byte each. Every nonzero byte is true. It is loaded as 1, so that a bitwise "and" is a
// logical one.
struct Boolean : Plain<std::uint8_t> {
  template <int kPart>
  static HWY_INLINE hn::Vec<Lanes> load(Source source, std::size_t i) {
    return hn::Min(hn::LoadU(Lanes(), source.data + i), hn::Set(Lanes(), 1));
  }
};

// 16-bit values or floats, in the order of memory.
template <class Codec, class SourceType, class OutType>
struct InOrder : OneVector<OutType> {
  using Source = SourceType;
  using Value = float;
  using Out = OutType;
  using Lanes = hn::ScalableTag<Out>;
#if HWY_TARGET == HWY_SCALAR
  static constexpr int kParts = 1;
#else
  static constexpr int kParts = sizeof(Out) == 2 ? 2 : 1;
#endif

  template <int kPart>
  static HWY_INLINE FloatVector load(Source source, std::size_t i) {
    const void* from = source.element(i + kPart * hn::MaxLanes(F32()));
    if (source.is_partial()) return hn::LoadU(F32(), static_cast<const float*>(from));
    return load_wide<Codec>(static_cast<const std::uint16_t*>(from));
  }
  template <bool /*are_numbers*/>
  static HWY_INLINE hn::Vec<Lanes> pack(FloatVector value) {
    if constexpr (sizeof(Out) == 2) {
      return narrow_lanes<Codec>(value);
    } else {
      return value;
    }
  }
#if HWY_TARGET != HWY_SCALAR
  template <bool /*are_numbers*/>
  static HWY_INLINE hn::Vec<Lanes> pack(FloatVector low, FloatVector high) {
    return hn::Combine(Lanes(), narrow_lanes<Codec>(high), narrow_lanes<Codec>(low));
  }
#endif
};

// 16-bit values that stay in their 32-bit lane: the two parts are the even and the odd elements, so
// no element crosses lanes.
template <class Codec>
struct Interleaved : OneVector<std::uint16_t> {
  using Source = TypedSource<std::uint16_t>;
  using Value = float;
  static constexpr int kParts = 2;

  template <int kPart>
  static HWY_INLINE FloatVector load(Source source, std::size_t i) {
    const auto bits = hn::BitCast(U32(), hn::LoadU(U16(), source.data + i));
    return kPart == 0 ? Codec::widen_low(bits) : Codec::widen_high(bits);
  }
  template <bool are_numbers>
  static HWY_INLINE hn::Vec<Lanes> pack(FloatVector even, FloatVector odd) {
    return hn::BitCast(
        U16(), are_numbers ? Codec::narrow_numbers(even, odd) : Codec::narrow_pair(even, odd));
  }
};

// The fastest format of the target for inputs and outputs of 16 bits.
#if HWY_TARGET == HWY_SCALAR
template <class Codec>
using Uniform16 = InOrder<Codec, TypedSource<std::uint16_t>, std::uint16_t>;
#else
template <class Codec>
using Uniform16 = std::conditional_t<STRETTO_HARDWARE_F16 && hwy::IsSame<Codec, HalfCodec>(),
                                     InOrder<Codec, TypedSource<std::uint16_t>, std::uint16_t>,
                                     Interleaved<Codec> >;
#endif

}  // namespace stretto::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STRETTO_KERNEL_FORMAT_INL_H_
