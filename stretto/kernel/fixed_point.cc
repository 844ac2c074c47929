// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/kernel/fixed_point.h"

#include <bit>

#include "stretto/kernel/targets.h"  // Before Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "stretto/kernel/fixed_point.cc"
#include "hwy/foreach_target.h"  // Must come before highway.h.

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F64 = hn::ScalableTag<double>;
using I64 = hn::RebindToSigned<F64>;
using F32 = hn::Rebind<float, F64>;
using U32 = hn::RebindToUnsigned<F32>;

// A number below 2^51 plus this constant has a significand whose last bit is worth 1. So the sum is
// the number rounded to an integer, and its bits are those of the constant plus that integer.
constexpr double kMagic = 0x1.8p52;

HWY_INLINE hn::Vec<I64> integer_of(hn::Vec<F64> rounded) {
  return hn::Sub(hn::BitCast(I64(), rounded), hn::BitCast(I64(), hn::Set(F64(), kMagic)));
}

bool add(const float* values, std::size_t count, std::int64_t* high, std::int64_t* low) {
  const auto magic = hn::Set(F64(), kMagic);
  auto greatest = hn::Zero(U32());
  std::size_t i = 0;
  const auto add_vector = [&](hn::Vec<F32> value, std::int64_t* to_high, std::int64_t* to_low) {
    // Infinity and NaN have greater bits than all numbers. Values without a pair are left out, so
    // that the sums cannot overflow.
    const auto magnitude = hn::Abs(value);
    greatest = hn::Max(greatest, hn::BitCast(U32(), magnitude));
    value = hn::IfThenElseZero(hn::Lt(magnitude, hn::Set(F32(), kFixedPointLimit)), value);
    // Only the additions of `magic` round.
    const auto scaled = hn::Mul(hn::PromoteTo(F64(), value), hn::Set(F64(), 0x1p18));
    const auto rounded = hn::Add(scaled, magic);
    const auto rest = hn::Sub(scaled, hn::Sub(rounded, magic));
    const auto rounded_rest = hn::Add(hn::Mul(rest, hn::Set(F64(), 0x1p43)), magic);
    hn::StoreU(hn::Add(hn::LoadU(I64(), to_high), integer_of(rounded)), I64(), to_high);
    hn::StoreU(hn::Add(hn::LoadU(I64(), to_low), integer_of(rounded_rest)), I64(), to_low);
  };
  constexpr std::size_t kLanes = hn::MaxLanes(F64());
  for (; i + kLanes <= count; i += kLanes) {
    add_vector(hn::LoadU(F32(), values + i), high + i, low + i);
  }
  if (i < count) {
    float rest[kLanes] = {};
    std::int64_t rest_high[kLanes] = {}, rest_low[kLanes] = {};
    const std::size_t left = count - i;
    for (std::size_t k = 0; k < left; ++k) rest[k] = values[i + k];
    add_vector(hn::LoadU(F32(), rest), rest_high, rest_low);
    for (std::size_t k = 0; k < left; ++k) {
      high[i + k] += rest_high[k];
      low[i + k] += rest_low[k];
    }
  }
  std::uint32_t of_lanes[kLanes];
  hn::StoreU(greatest, U32(), of_lanes);
  for (const std::uint32_t of_lane : of_lanes) {
    if (of_lane >= std::bit_cast<std::uint32_t>(kFixedPointLimit)) return false;
  }
  return true;
}

}  // namespace stretto::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernel {

HWY_EXPORT(add);

bool add_fixed_point(const float* values, std::size_t count, std::int64_t* high,
                     std::int64_t* low) {
  return HWY_DYNAMIC_DISPATCH(add)(values, count, high, low);
}

void from_fixed_point(const std::int64_t* high, const std::int64_t* low, std::size_t count,
                      double factor, float* values) {
  constexpr int kLowBits = 43;    // Bits of `low` that make a unit of `high`.
  constexpr int kMovedBits = 10;  // So each part has at most 53 bits: exact in f64.
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t carried = high[i] + (low[i] >> kLowBits);
    const std::int64_t rest = low[i] & ((std::int64_t{1} << kLowBits) - 1);
    const std::int64_t moved = carried & ((std::int64_t{1} << kMovedBits) - 1);
    const double value = static_cast<double>(carried >> kMovedBits) * 0x1p-8 +
                         static_cast<double>((moved << kLowBits) + rest) * 0x1p-61;
    values[i] = static_cast<float>(value * factor);
  }
}

}  // namespace stretto::kernel
#endif  // HWY_ONCE
