// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Conversion between f16 or bf16 and f32, with the same bits on every target, and other functions
// on the bits of f32. Included once per SIMD target, so the guard toggles instead of being `#pragma
// once`.
#if defined(STRETTO_KERNEL_HALF_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_KERNEL_HALF_INL_H_
#undef STRETTO_KERNEL_HALF_INL_H_
#else
#define STRETTO_KERNEL_HALF_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using U32 = hn::ScalableTag<std::uint32_t>;
using I32 = hn::ScalableTag<std::int32_t>;
using U16 = hn::ScalableTag<std::uint16_t>;
using HalfU16 = hn::Rebind<std::uint16_t, F32>;  // As many 16-bit lanes as a vector has floats.
using FloatVector = hn::Vec<F32>;
using BitsVector = hn::Vec<U32>;

// Whether the target converts f16 in hardware. There, Highway's DemoteTo rounds to nearest even,
// and NaN keeps its sign and the upper bits of its payload and becomes quiet, as in the code below.
// On other targets, Highway's emulation truncates and does not keep NaN. Better targets have lower
// numbers: those of x86 the lowest, the portable ones the highest.
#undef STRETTO_HARDWARE_F16
#if (HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)) || \
    (HWY_ARCH_ARM_A64 && HWY_TARGET < HWY_EMU128)
#define STRETTO_HARDWARE_F16 1
#else
#define STRETTO_HARDWARE_F16 0
#endif

HWY_INLINE BitsVector bits_of(FloatVector value) { return hn::BitCast(U32(), value); }
HWY_INLINE FloatVector float_of(BitsVector bits) { return hn::BitCast(F32(), bits); }
// Magnitudes as integers with the same order.
HWY_INLINE hn::Vec<I32> magnitudes(FloatVector values) {
  return hn::And(hn::BitCast(I32(), values), hn::Set(I32(), 0x7FFFFFFF));
}
HWY_INLINE std::uint32_t greatest_of(hn::Vec<I32> lanes) {
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(I32(), lanes)));
}

// A codec converts 32-bit lanes, whose low half holds a 16-bit number, to floats and back.
struct BFloat16Codec {
  static HWY_INLINE FloatVector widen_low(BitsVector bits) {
    return float_of(hn::ShiftLeft<16>(bits));
  }
  static HWY_INLINE FloatVector widen_high(BitsVector bits) {
    return float_of(hn::And(bits, hn::Set(U32(), 0xFFFF0000u)));
  }
  // Returns the rounded number in the high half; the low half is unspecified. Integer arithmetic,
  // because Highway's DemoteTo truncates, and the instruction of AVX-512 flushes denormals.
  static HWY_INLINE BitsVector round_high(FloatVector value) {
    const auto quiet = hn::Or(bits_of(value), hn::Set(U32(), 0x00400000));
    const auto rounded = float_of(round_number(value));
    return bits_of(hn::IfThenElse(hn::IsNaN(value), float_of(quiet), rounded));
  }
  static HWY_INLINE BitsVector narrow(FloatVector value) {
    return hn::ShiftRight<16>(round_high(value));
  }
  // Packs two numbers into one lane.
  static HWY_INLINE BitsVector narrow_pair(FloatVector low, FloatVector high) {
    return hn::Or(narrow(low), hn::And(round_high(high), hn::Set(U32(), 0xFFFF0000u)));
  }
#if HWY_TARGET != HWY_SCALAR
  // The same if neither is NaN.
  static HWY_INLINE BitsVector narrow_numbers(FloatVector low, FloatVector high) {
    const auto low_half = hn::BitCast(U16(), hn::ShiftRight<16>(round_number(low)));
    return hn::BitCast(U32(), hn::OddEven(hn::BitCast(U16(), round_number(high)), low_half));
  }
#endif

 private:
  // Returns the number in the high half, rounded to nearest, ties to even: adds half of the last
  // place, less one bit if the last place is even.
  static HWY_INLINE BitsVector round_number(FloatVector value) {
    const auto bits = bits_of(value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(U32(), 1));
    return hn::Add(hn::Add(bits, hn::Set(U32(), 0x7FFF)), odd);
  }
};

struct HalfCodec {
  static HWY_INLINE FloatVector widen_low(BitsVector bits) {
    return widen(hn::And(bits, hn::Set(U32(), 0xFFFF)));
  }
  static HWY_INLINE FloatVector widen_high(BitsVector bits) {
    return widen(hn::ShiftRight<16>(bits));
  }
  static HWY_INLINE FloatVector widen(BitsVector bits) {
    const auto magnitude = hn::And(bits, hn::Set(U32(), 0x7FFF));
    const auto sign = hn::ShiftLeft<16>(hn::Xor(bits, magnitude));
    const auto shifted = hn::ShiftLeft<13>(magnitude);
    // The bias of the exponent is 127 in f32 and 15 in f16; infinity and NaN keep the top exponent.
    const auto normal = hn::Add(shifted, hn::Set(U32(), (127u - 15u) << 23));
    const auto special = hn::Or(shifted, hn::Set(U32(), 0x7F800000));
    // A denormal is a fraction of 2^-14. Give it that exponent, which implies a leading one, and
    // subtract that one again.
    const auto smallest = hn::Set(U32(), 113u << 23);
    const auto denormal =
        bits_of(hn::Sub(float_of(hn::Add(shifted, smallest)), float_of(smallest)));
    auto result = select(below(magnitude, 0x0400), denormal, normal);
    result = select(below(magnitude, 0x7C00), result, special);
    const auto quiet = hn::Or(result, hn::Set(U32(), 0x00400000));
    result = select(below(magnitude, 0x7C01), result, quiet);
    return float_of(hn::Or(result, sign));
  }
  static HWY_INLINE BitsVector narrow(FloatVector value) {
    const auto bits = bits_of(value);
    const auto magnitude = hn::And(bits, hn::Set(U32(), 0x7FFFFFFF));
    const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(U32(), 1));
    const auto rebiased = hn::Sub(magnitude, hn::Set(U32(), (127u - 15u) << 23));
    const auto normal = hn::ShiftRight<13>(hn::Add(hn::Add(rebiased, hn::Set(U32(), 0x0FFF)), odd));
    // The last bit of 0.5f is worth 2^-24, like that of a denormal f16, so the addition rounds.
    const auto half = hn::Set(U32(), 126u << 23);
    const auto denormal = hn::Sub(bits_of(hn::Add(float_of(magnitude), float_of(half))), half);
    const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(U32(), 0x03FF));
    const auto nan = hn::Or(payload, hn::Set(U32(), 0x7E00));
    auto result = select(below(magnitude, 113u << 23), denormal, normal);
    // From 65520 on, which is half way between the greatest f16 and the next power of two, the
    // result is infinity.
    result = select(below(magnitude, 0x477FF000), result, hn::Set(U32(), 0x7C00));
    result = select(below(magnitude, 0x7F800001), result, nan);
    return hn::Or(result, sign);
  }
  static HWY_INLINE BitsVector narrow_pair(FloatVector low, FloatVector high) {
    return hn::Or(narrow(low), hn::ShiftLeft<16>(narrow(high)));
  }
  static HWY_INLINE BitsVector narrow_numbers(FloatVector low, FloatVector high) {
    return narrow_pair(low, high);
  }

 private:
  // Magnitudes are below 2^31, so signed comparison, which every target has, is right.
  static HWY_INLINE hn::Mask<I32> below(BitsVector magnitude, std::uint32_t limit) {
    return hn::Lt(hn::BitCast(I32(), magnitude), hn::Set(I32(), static_cast<std::int32_t>(limit)));
  }
  static HWY_INLINE BitsVector select(hn::Mask<I32> mask, BitsVector yes, BitsVector no) {
    return hn::BitCast(U32(),
                       hn::IfThenElse(mask, hn::BitCast(I32(), yes), hn::BitCast(I32(), no)));
  }
};

// Loads as many 16-bit numbers as a vector has floats, in the order of memory.
template <class Codec>
HWY_INLINE FloatVector load_wide(const std::uint16_t* from) {
#if STRETTO_HARDWARE_F16
  if constexpr (hwy::IsSame<Codec, HalfCodec>()) {
    const hn::Rebind<hwy::float16_t, F32> d;
    return hn::PromoteTo(F32(), hn::BitCast(d, hn::LoadU(HalfU16(), from)));
  }
#endif
  return Codec::widen_low(hn::PromoteTo(U32(), hn::LoadU(HalfU16(), from)));
}

template <class Codec>
HWY_INLINE hn::Vec<HalfU16> narrow_lanes(FloatVector value) {
#if STRETTO_HARDWARE_F16
  if constexpr (hwy::IsSame<Codec, HalfCodec>()) {
    const hn::Rebind<hwy::float16_t, F32> d;
    return hn::BitCast(HalfU16(), hn::DemoteTo(d, value));
  }
#endif
  return hn::DemoteTo(HalfU16(), hn::BitCast(I32(), Codec::narrow(value)));
}

}  // namespace stretto::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STRETTO_KERNEL_HALF_INL_H_
