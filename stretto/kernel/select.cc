// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/kernel/select.h"

#include <algorithm>
#include <utility>

#include "stretto/kernel/targets.h"  // Before Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "stretto/kernel/select.cc"
#include "hwy/foreach_target.h"  // Must come before highway.h.

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::ScalableTag<std::int32_t>;
using U32 = hn::ScalableTag<std::uint32_t>;
constexpr std::size_t kLanes = hn::MaxLanes(F32());

// Where what is taken goes.
struct Room {
  std::uint32_t* indices;
  float* taken;
  std::size_t count;
};

// These functions return the number of elements taken so far: of an object whose address is known
// elsewhere the processor would wait for it.
HWY_INLINE std::size_t take_one(const Room& room, std::size_t count, float* values,
                                std::size_t index) {
  if (count < room.count) {
    room.indices[count] = static_cast<std::uint32_t>(index);
    room.taken[count] = std::exchange(values[index], 0.0f);
  }
  return count + 1;
}

HWY_NOINLINE std::size_t take_with_care(const Room& room, std::size_t count, hn::Mask<I32> mask,
                                        hn::Vec<F32> value, float* values, std::size_t first) {
  HWY_ALIGN std::int32_t hits[kLanes];
  hn::Store(hn::VecFromMask(I32(), mask), I32(), hits);
  hn::StoreU(value, F32(), values + first);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (hits[lane] != 0) count = take_one(room, count, values, first + lane);
  }
  return count;
}

// `value` belongs to `values[first]` and the following ones, and comes there but for what `mask`
// takes. No branch depends on the mask, which no processor guesses.
HWY_INLINE std::size_t take(const Room& room, std::size_t count, hn::Mask<I32> mask,
                            hn::Vec<F32> value, float* values, std::size_t first,
                            hn::Vec<I32> lanes) {
  // Stores of a part of a vector may write all of it.
  if (HWY_UNLIKELY(count + kLanes > room.count)) {
    return take_with_care(room, count, mask, value, values, first);
  }
  // In two steps: compressing into memory takes hundreds of cycles on some processors.
  const auto indices = hn::Add(lanes, hn::Set(I32(), static_cast<std::int32_t>(first)));
  const auto floats = hn::RebindMask(F32(), mask);
  auto* const to = reinterpret_cast<std::int32_t*>(room.indices + count);
  hn::StoreU(hn::Compress(indices, mask), I32(), to);
  hn::StoreU(hn::Compress(value, floats), F32(), room.taken + count);
  hn::StoreU(hn::IfThenZeroElse(floats, value), F32(), values + first);
  return count + hn::CountTrue(I32(), mask);
}

template <bool kAdds>
HWY_INLINE hn::Vec<F32> value_at(const float* values, const float* addends, std::size_t i) {
  const auto value = hn::LoadU(F32(), values + i);
  if constexpr (!kAdds) return value;
  return hn::Add(value, hn::LoadU(F32(), addends + i));
}

HWY_INLINE hn::Vec<I32> magnitudes(hn::Vec<F32> values) {
  return hn::And(hn::BitCast(I32(), values), hn::Set(I32(), 0x7FFFFFFF));
}

template <bool kAdds>
Found take_all(std::span<float> in, const float* addends, std::uint32_t limit,
               std::span<std::uint32_t> indices, std::span<float> taken) {
  const Room room{indices.data(), taken.data(), indices.size()};
  std::size_t found = 0;
  float* const values = in.data();
  // Magnitudes are below 2^31, where signed comparison is right. A limit above is never reached:
  // then this is 2^31 - 1, which no magnitude exceeds.
  const auto below = static_cast<std::int32_t>(std::min<std::uint32_t>(limit, 0x80000000) - 1);
  const auto under = hn::Set(I32(), below);
  const auto lanes = hn::Iota(I32(), 0);
  auto greatest = hn::Zero(I32());
  std::size_t i = 0;
  constexpr std::size_t kStep = 4 * kLanes;
  for (; i + kStep <= in.size(); i += kStep) {
    const auto a = value_at<kAdds>(values, addends, i);
    const auto b = value_at<kAdds>(values, addends, i + kLanes);
    const auto c = value_at<kAdds>(values, addends, i + 2 * kLanes);
    const auto d = value_at<kAdds>(values, addends, i + 3 * kLanes);
    const auto of_two = hn::Max(magnitudes(a), magnitudes(b));
    const auto of_four = hn::Max(of_two, hn::Max(magnitudes(c), magnitudes(d)));
    greatest = hn::Max(greatest, of_four);
    if (!hn::AllFalse(I32(), hn::Gt(of_four, under))) {
      const auto take_of = [&](hn::Vec<F32> value, std::size_t first) HWY_ATTR {
        const auto mask = hn::Gt(magnitudes(value), under);
        found = take(room, found, mask, value, values, first, lanes);
      };
      take_of(a, i);
      take_of(b, i + kLanes);
      take_of(c, i + 2 * kLanes);
      take_of(d, i + 3 * kLanes);
    } else if constexpr (kAdds) {
      hn::StoreU(a, F32(), values + i);
      hn::StoreU(b, F32(), values + i + kLanes);
      hn::StoreU(c, F32(), values + i + 2 * kLanes);
      hn::StoreU(d, F32(), values + i + 3 * kLanes);
    }
  }
  HWY_ALIGN std::int32_t of_lanes[kLanes];
  hn::Store(greatest, I32(), of_lanes);
  auto top = static_cast<std::uint32_t>(*std::max_element(of_lanes, of_lanes + kLanes));
  for (; i < in.size(); ++i) {
    if constexpr (kAdds) values[i] += addends[i];
    const std::uint32_t bits = magnitude_bits(values[i]);
    top = std::max(top, bits);
    if (bits >= limit) found = take_one(room, found, values, i);
  }
  return {found, top};
}

Found take_only(std::span<float> values, std::uint32_t limit, std::span<std::uint32_t> indices,
                std::span<float> taken) {
  return take_all<false>(values, nullptr, limit, indices, taken);
}

Found add_and_take(std::span<float> sums, const float* addends, std::uint32_t limit,
                   std::span<std::uint32_t> indices, std::span<float> taken) {
  return take_all<true>(sums, addends, limit, indices, taken);
}

}  // namespace stretto::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernel {

HWY_EXPORT(take_only);
HWY_EXPORT(add_and_take);

Found take_at_least(std::span<float> values, std::uint32_t limit, std::span<std::uint32_t> indices,
                    std::span<float> taken) {
  return HWY_DYNAMIC_DISPATCH(take_only)(values, limit, indices, taken);
}

Found add_and_take_at_least(std::span<float> sums, std::span<const float> addends,
                            std::uint32_t limit, std::span<std::uint32_t> indices,
                            std::span<float> taken) {
  return HWY_DYNAMIC_DISPATCH(add_and_take)(sums, addends.data(), limit, indices, taken);
}

// Two histograms: neighbours often fall into the same bin, and a counter that was just written
// cannot be read at once.
void count_magnitudes(std::span<const float> values, std::span<std::uint32_t> counts) {
  std::uint32_t odd[kMagnitudeBins] = {};
  std::fill(counts.begin(), counts.end(), 0u);
  std::size_t i = 0;
  for (; i + 2 <= values.size(); i += 2) {
    ++counts[magnitude_bits(values[i]) >> kMagnitudeBinShift];
    ++odd[magnitude_bits(values[i + 1]) >> kMagnitudeBinShift];
  }
  if (i < values.size()) ++counts[magnitude_bits(values[i]) >> kMagnitudeBinShift];
  for (std::size_t bin = 0; bin < kMagnitudeBins; ++bin) counts[bin] += odd[bin];
}

std::size_t clear_non_finite(std::span<float> values) {
  std::size_t count = 0;
  for (float& value : values) {
    if (magnitude_bits(value) < kInfinityBits) continue;
    value = 0;
    ++count;
  }
  return count;
}

}  // namespace stretto::kernel
#endif  // HWY_ONCE
