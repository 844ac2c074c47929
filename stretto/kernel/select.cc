// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/kernel/select.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <utility>

#include "stretto/kernel/targets.h"  // Before Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "stretto/kernel/select.cc"
#include "hwy/foreach_target.h"  // Must come before highway.h.

#include "stretto/kernel/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kLanes = hn::MaxLanes(F32());
static_assert(kLanes <= kSpareMagnitudes);
constexpr std::size_t kVectors = 32;  // Vectors that look() looks at: kGroup elements.
constexpr std::size_t kGroup = kVectors * kLanes;
constexpr std::uint32_t kNeverReached = 0x80000000;  // Greater than all magnitudes, NaN included.

// The space for the taken elements.
struct Room {
  std::uint32_t* indices;
  float* taken;
  std::size_t count;
};

// These functions get and return the number of elements taken so far. If it were in an object in
// memory, the processor would wait for each store to it.
HWY_INLINE std::size_t take_one(const Room& room, std::size_t count, float* values,
                                std::size_t index) {
  if (count < room.count) {
    room.indices[count] = static_cast<std::uint32_t>(index);
    room.taken[count] = std::exchange(values[index], 0.0f);
  }
  return count + 1;
}

HWY_NOINLINE std::size_t take_with_care(const Room& room, std::size_t count, hn::Mask<I32> mask,
                                        float* values, std::size_t first) {
  HWY_ALIGN std::int32_t hits[kLanes];
  hn::Store(hn::VecFromMask(I32(), mask), I32(), hits);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (hits[lane] != 0) count = take_one(room, count, values, first + lane);
  }
  return count;
}

// Takes the elements above `under` out of the vector that begins with `values[first]`. No branch
// depends on the taken elements, because no processor could predict it.
HWY_INLINE std::size_t take(const Room& room, std::size_t count, float* values, std::size_t first,
                            hn::Vec<I32> under, hn::Vec<I32> lanes) {
  const auto value = hn::LoadU(F32(), values + first);
  const auto mask = hn::Gt(magnitudes(value), under);
  // A store of a part of a vector may write all of it.
  if (HWY_UNLIKELY(count + kLanes > room.count)) {
    return take_with_care(room, count, mask, values, first);
  }
  // Compresses and stores in two steps, because compressing into memory takes hundreds of cycles on
  // some processors. Values are treated as integers, like the indices, so that one table serves
  // both.
  const auto indices = hn::Add(lanes, hn::Set(I32(), static_cast<std::int32_t>(first)));
  const auto taken = hn::Compress(hn::BitCast(I32(), value), mask);
  auto* const to = reinterpret_cast<std::int32_t*>(room.indices + count);
  hn::StoreU(hn::Compress(indices, mask), I32(), to);
  hn::StoreU(hn::BitCast(F32(), taken), F32(), room.taken + count);
  hn::StoreU(hn::IfThenZeroElse(hn::RebindMask(F32(), mask), value), F32(), values + first);
  return count + hn::CountTrue(I32(), mask);
}

template <bool kAdds>
HWY_INLINE hn::Vec<F32> value_at(const float* values, const float* addends, std::size_t i) {
  const auto value = hn::LoadU(F32(), values + i);
  if constexpr (!kAdds) return value;
  return hn::Add(value, hn::LoadU(F32(), addends + i));
}

// Finds the vectors, of up to 32, that have elements to take. Returns them as bits, the first
// vector lowest. With kAdds, first adds `addends` and stores the sums in `values`. Nothing else is
// stored, because storing a word per vector in between takes twice as long.
template <bool kAdds>
HWY_INLINE std::uint32_t look(float* values, const float* addends, std::size_t first,
                              std::size_t vectors, hn::Vec<I32> under, hn::Vec<I32>& greatest) {
  const auto newest = hn::Set(U32(), 0x80000000);
  auto hits = hn::Zero(U32());  // Per lane, a bit for each vector.
  for (std::size_t i = first; i < first + vectors * kLanes; i += kLanes) {
    const auto value = value_at<kAdds>(values, addends, i);
    if constexpr (kAdds) hn::StoreU(value, F32(), values + i);
    const auto magnitude = magnitudes(value);
    greatest = hn::Max(greatest, magnitude);
    const auto hit = hn::BitCast(U32(), hn::VecFromMask(I32(), hn::Gt(magnitude, under)));
    hits = hn::Or(hn::ShiftRight<1>(hits), hn::And(hit, newest));
  }
  HWY_ALIGN std::uint32_t of_lanes[kLanes];
  hn::Store(hits, U32(), of_lanes);
  return std::reduce(of_lanes, of_lanes + kLanes, 0u, std::bit_or<>()) >> (kVectors - vectors);
}

// So many elements are looked at before the found ones are taken, while all are still in the
// nearest cache. The branches on found elements cannot be predicted; in a separate loop, they do
// not delay loads from memory.
constexpr std::size_t kBlock = 2048;
static_assert(kBlock % (2 * kGroup) == 0);

template <bool kAdds>
Found take_all(std::span<float> in, const float* addends, std::uint32_t limit,
               std::span<std::uint32_t> indices, std::span<float> taken) {
  const Room room{indices.data(), taken.data(), indices.size()};
  std::size_t found = 0;
  float* const values = in.data();
  // Magnitudes are below 2^31, so signed comparison is right. For a limit of 0, `under` is -1.
  const std::uint32_t reachable = std::min(limit, kNeverReached);
  const auto under = hn::Set(I32(), static_cast<std::int32_t>(reachable - 1));
  const auto lanes = hn::Iota(I32(), 0);
  auto greatest = hn::Zero(I32());
  std::size_t i = 0;
  std::uint32_t of_few = 0;  // The greatest magnitude outside of whole vectors.
  const auto one_by_one = [&](std::size_t end) {
    for (; i < end; ++i) {
      if constexpr (kAdds) values[i] += addends[i];
      const std::uint32_t bits = magnitude_bits(values[i]);
      of_few = std::max(of_few, bits);
      if (bits >= limit) found = take_one(room, found, values, i);
    }
  };
  // Storing a vector that crosses a cache line takes twice as long.
  one_by_one(
      std::min(in.size(), -(reinterpret_cast<std::uintptr_t>(values) / sizeof(float)) % kLanes));
  for (const std::size_t whole = in.size() - (in.size() - i) % kLanes; i < whole;) {
    std::uint64_t hits[kBlock / kGroup / 2] = {};
    const std::size_t begin = i, end = std::min(whole, i + kBlock);
    for (; i < end; i += kGroup) {
      const std::size_t vectors = std::min(kVectors, (end - i) / kLanes);
      const std::uint64_t some = look<kAdds>(values, addends, i, vectors, under, greatest);
      const std::size_t group = (i - begin) / kGroup;
      hits[group / 2] |= some << group % 2 * kVectors;
    }
    i = end;
    for (std::size_t first = begin; first < end; first += 2 * kGroup) {
      std::uint64_t bits = hits[(first - begin) / kGroup / 2];
      for (; bits != 0; bits &= bits - 1) {
        const auto vector = static_cast<std::size_t>(std::countr_zero(bits));
        found = take(room, found, values, first + vector * kLanes, under, lanes);
      }
    }
  }
  one_by_one(in.size());
  return {found, std::max(of_few, greatest_of(greatest))};
}

// No branch depends on which elements stay: the others are gathered, and put back block by block.
std::size_t keep(std::span<std::uint32_t> indices, std::span<float> taken, std::uint32_t limit,
                 float* to) {
  const auto under = hn::Set(I32(), static_cast<std::int32_t>(limit - 1));
  std::size_t kept = 0, i = 0;
  for (const std::size_t whole = indices.size() / kLanes * kLanes; i < whole;) {
    std::uint32_t places[kBlock + kLanes];
    float values[kBlock + kLanes];
    std::size_t others = 0;
    for (const std::size_t end = std::min(whole, i + kBlock); i < end; i += kLanes) {
      const auto place = hn::LoadU(U32(), indices.data() + i);
      const auto value = hn::LoadU(F32(), taken.data() + i);
      const auto stays = hn::Gt(magnitudes(value), under), leaves = hn::Not(stays);
      hn::StoreU(hn::Compress(place, hn::RebindMask(U32(), stays)), U32(), indices.data() + kept);
      hn::StoreU(hn::Compress(value, hn::RebindMask(F32(), stays)), F32(), taken.data() + kept);
      hn::StoreU(hn::Compress(place, hn::RebindMask(U32(), leaves)), U32(), places + others);
      hn::StoreU(hn::Compress(value, hn::RebindMask(F32(), leaves)), F32(), values + others);
      const std::size_t count = hn::CountTrue(I32(), stays);
      kept += count;
      others += kLanes - count;
    }
    for (std::size_t j = 0; j < others; ++j) to[places[j]] = values[j];
  }
  for (; i < indices.size(); ++i) {
    if (magnitude_bits(taken[i]) >= limit) {
      indices[kept] = indices[i];
      taken[kept++] = taken[i];
    } else {
      to[indices[i]] = taken[i];
    }
  }
  return kept;
}

std::size_t between(std::span<const float> values, std::uint32_t least, std::uint32_t greatest,
                    std::uint32_t* to) {
  const auto under = hn::Set(I32(), static_cast<std::int32_t>(least - 1));
  const auto most = hn::Set(I32(), static_cast<std::int32_t>(greatest));
  std::size_t count = 0, i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    const auto magnitude = magnitudes(hn::LoadU(F32(), values.data() + i));
    const auto mask = hn::AndNot(hn::Gt(magnitude, most), hn::Gt(magnitude, under));
    hn::StoreU(hn::BitCast(U32(), hn::Compress(magnitude, mask)), U32(), to + count);
    count += hn::CountTrue(I32(), mask);
  }
  for (; i < values.size(); ++i) {
    to[count] = magnitude_bits(values[i]);
    count += to[count] >= least && to[count] <= greatest ? 1 : 0;
  }
  return count;
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
HWY_EXPORT(keep);
HWY_EXPORT(between);

Found take_at_least(std::span<float> values, std::uint32_t limit, std::span<std::uint32_t> indices,
                    std::span<float> taken) {
  return HWY_DYNAMIC_DISPATCH(take_only)(values, limit, indices, taken);
}

Found add_and_take_at_least(std::span<float> sums, std::span<const float> addends,
                            std::uint32_t limit, std::span<std::uint32_t> indices,
                            std::span<float> taken) {
  return HWY_DYNAMIC_DISPATCH(add_and_take)(sums, addends.data(), limit, indices, taken);
}

std::size_t keep_at_least(std::span<std::uint32_t> indices, std::span<float> taken,
                          std::uint32_t limit, std::span<float> to) {
  return HWY_DYNAMIC_DISPATCH(keep)(indices, taken, limit, to.data());
}

std::size_t magnitudes_between(std::span<const float> values, std::uint32_t least,
                               std::uint32_t greatest, std::span<std::uint32_t> to) {
  return HWY_DYNAMIC_DISPATCH(between)(values, least, greatest, to.data());
}

// Uses two histograms: neighbours often fall into the same bin, and a counter cannot be read right
// after it was written.
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

}  // namespace stretto::kernel
#endif  // HWY_ONCE
