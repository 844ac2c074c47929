// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/kernel/select.h"

#include <algorithm>

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

// Collects indices. Most vectors hold none.
class Indices {
 public:
  Indices(std::uint32_t* to, std::size_t room) : to_(to), room_(room) {}

  HWY_INLINE void add(hn::Mask<I32> mask, std::size_t first) {
    if (hn::AllFalse(I32(), mask)) return;
    // Stores of a part of a vector may write all of it.
    if (count_ + kLanes > room_) return add_with_care(mask, first);
    // In two steps: compressing into memory takes hundreds of cycles on some processors.
    const auto indices = hn::Iota(I32(), static_cast<std::int32_t>(first));
    hn::StoreU(hn::Compress(indices, mask), I32(), reinterpret_cast<std::int32_t*>(to_ + count_));
    count_ += hn::CountTrue(I32(), mask);
  }
  void add_one(std::size_t index) {
    if (count_ < room_) to_[count_] = static_cast<std::uint32_t>(index);
    ++count_;
  }
  std::size_t count() const { return count_; }

 private:
  HWY_NOINLINE void add_with_care(hn::Mask<I32> mask, std::size_t first) {
    HWY_ALIGN std::int32_t hits[kLanes];
    hn::Store(hn::VecFromMask(I32(), mask), I32(), hits);
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      if (hits[lane] != 0) add_one(first + lane);
    }
  }

  std::uint32_t* const to_;
  const std::size_t room_;
  std::size_t count_ = 0;
};

template <bool kAdds>
HWY_INLINE hn::Vec<I32> magnitudes_at(float* values, const float* addends, std::size_t i) {
  auto value = hn::LoadU(F32(), values + i);
  if constexpr (kAdds) {
    value = hn::Add(value, hn::LoadU(F32(), addends + i));
    hn::StoreU(value, F32(), values + i);
  }
  return hn::And(hn::BitCast(I32(), value), hn::Set(I32(), 0x7FFFFFFF));
}

// `values` are written if kAdds only.
template <bool kAdds>
Found find(float* values, const float* addends, std::size_t count, std::uint32_t limit,
           std::uint32_t* to, std::size_t room) {
  Indices indices(to, room);
  // Magnitudes are below 2^31, where signed comparison is right. A limit above is never reached:
  // then this is 2^31 - 1, which no magnitude exceeds.
  const auto below = static_cast<std::int32_t>(std::min<std::uint32_t>(limit, 0x80000000) - 1);
  const auto under = hn::Set(I32(), below);
  auto greatest = hn::Zero(I32());
  std::size_t i = 0;
  constexpr std::size_t kStep = 4 * kLanes;
  for (; i + kStep <= count; i += kStep) {
    const auto a = magnitudes_at<kAdds>(values, addends, i);
    const auto b = magnitudes_at<kAdds>(values, addends, i + kLanes);
    const auto c = magnitudes_at<kAdds>(values, addends, i + 2 * kLanes);
    const auto d = magnitudes_at<kAdds>(values, addends, i + 3 * kLanes);
    const auto of_four = hn::Max(hn::Max(a, b), hn::Max(c, d));
    greatest = hn::Max(greatest, of_four);
    if (hn::AllFalse(I32(), hn::Gt(of_four, under))) continue;
    indices.add(hn::Gt(a, under), i);
    indices.add(hn::Gt(b, under), i + kLanes);
    indices.add(hn::Gt(c, under), i + 2 * kLanes);
    indices.add(hn::Gt(d, under), i + 3 * kLanes);
  }
  HWY_ALIGN std::int32_t lanes[kLanes];
  hn::Store(greatest, I32(), lanes);
  auto top = static_cast<std::uint32_t>(*std::max_element(lanes, lanes + kLanes));
  for (; i < count; ++i) {
    if constexpr (kAdds) values[i] += addends[i];
    const std::uint32_t bits = magnitude_bits(values[i]);
    top = std::max(top, bits);
    if (bits >= limit) indices.add_one(i);
  }
  return {indices.count(), top};
}

Found find_only(const float* values, std::size_t count, std::uint32_t limit, std::uint32_t* to,
                std::size_t room) {
  // What is not added to is not written.
  return find<false>(const_cast<float*>(values), nullptr, count, limit, to, room);
}

Found add_and_find(float* sums, const float* addends, std::size_t count, std::uint32_t limit,
                   std::uint32_t* to, std::size_t room) {
  return find<true>(sums, addends, count, limit, to, room);
}

}  // namespace stretto::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernel {

HWY_EXPORT(find_only);
HWY_EXPORT(add_and_find);

Found find_at_least(std::span<const float> values, std::uint32_t limit,
                    std::span<std::uint32_t> indices) {
  return HWY_DYNAMIC_DISPATCH(find_only)(values.data(), values.size(), limit, indices.data(),
                                         indices.size());
}

Found add_and_find_at_least(std::span<float> sums, std::span<const float> addends,
                            std::uint32_t limit, std::span<std::uint32_t> indices) {
  return HWY_DYNAMIC_DISPATCH(add_and_find)(sums.data(), addends.data(), sums.size(), limit,
                                            indices.data(), indices.size());
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
