// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/kernel/indices.h"

#include <bit>
#include <cstring>

#include "stretto/kernel/targets.h"  // Before Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "stretto/kernel/indices.cc"
#include "hwy/foreach_target.h"  // Must come before highway.h.

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using U32 = hn::ScalableTag<std::uint32_t>;
constexpr std::size_t kLanes = hn::MaxLanes(U32());
constexpr std::uint64_t kLaneBits = (std::uint64_t{1} << kLanes) - 1;
constexpr std::size_t kWordBits = 64;
constexpr std::size_t kWordBytes = 8;

HWY_INLINE std::uint64_t load(const std::byte* from) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, kWordBytes);
  return word;
}

std::size_t ones(std::span<const std::byte> words, std::uint32_t first,
                 std::span<std::uint32_t> places) {
  const auto step = hn::Set(U32(), static_cast<std::uint32_t>(kLanes));
  auto here = hn::Iota(U32(), first);
  std::size_t count = 0;
  for (std::size_t at = 0; at < words.size(); at += kWordBytes, first += kWordBits) {
    const std::uint64_t word = load(words.data() + at);
    if (HWY_UNLIKELY(count + kWordBits > places.size())) {
      for (std::uint64_t bits = word; bits != 0; bits &= bits - 1, ++count) {
        const auto bit = static_cast<std::uint32_t>(std::countr_zero(bits));
        if (count < places.size()) places[count] = first + bit;
      }
      here = hn::Add(here, hn::Set(U32(), kWordBits));
      continue;
    }
    // Whole vectors are stored; elements after the found ones are overwritten later.
    for (std::size_t lane = 0; lane < kWordBits; lane += kLanes) {
      const std::uint64_t part = word >> lane;
      HWY_ALIGN std::uint8_t bits[kWordBytes];
      std::memcpy(bits, &part, kWordBytes);
      hn::StoreU(hn::CompressBits(here, bits), U32(), places.data() + count);
      here = hn::Add(here, step);
      count += hwy::PopCount(part & kLaneBits);
    }
  }
  return count;
}

#if HWY_TARGET != HWY_SCALAR

// Joins eight numbers at a time, with one vector or two. Eight numbers begin at a byte boundary.
using Numbers = hn::CappedTag<std::uint32_t, 8>;
using Bytes = hn::Repartition<std::uint8_t, Numbers>;
constexpr std::size_t kNumbers = hn::MaxLanes(Numbers());

// The shuffle and the shifts that move eight numbers to their lanes: the first four from the bytes
// in which the eight begin, the other four from the bytes from `middle` on.
struct Unpacking {
  explicit Unpacking(unsigned low_bits) : middle(4 * low_bits / 8) {
    for (unsigned lane = 0; lane < 8; ++lane) {
      const unsigned bit = (lane < 4 ? 0 : 4 * low_bits % 8) + lane % 4 * low_bits;
      for (unsigned byte = 0; byte < 4; ++byte) {
        bytes[4 * lane + byte] = static_cast<std::uint8_t>(bit / 8 + byte);
      }
      shifts[lane] = bit % 8;
    }
  }
  HWY_ALIGN std::uint8_t bytes[32];
  HWY_ALIGN std::uint32_t shifts[8];
  std::size_t middle;
};

HWY_INLINE hn::Vec<Bytes> load_lows(const std::uint8_t* from, std::size_t middle) {
  if constexpr (kNumbers == 8) {
    const hn::Half<Bytes> half;
    return hn::Combine(Bytes(), hn::LoadU(half, from + middle), hn::LoadU(half, from));
  } else {
    return hn::LoadU(Bytes(), from);
  }
}

// Joins as many numbers as possible with vectors; returns how many.
std::size_t join_eights(std::span<const std::byte> lows, unsigned low_bits, std::size_t first,
                        std::span<std::uint32_t> places) {
  // A number, and the bits before it in its first byte, must fit into a lane.
  if (low_bits > 25) return 0;
  const Unpacking table(low_bits);
  const auto mask = hn::Set(Numbers(), (1u << low_bits) - 1);
  const auto step = hn::Set(Numbers(), static_cast<std::uint32_t>(kNumbers));
  auto numbers = hn::Iota(Numbers(), static_cast<std::uint32_t>(first));
  std::size_t i = 0;
  for (; i + 8 <= places.size(); i += 8) {
    const std::size_t at = (first + i) / 8 * low_bits;
    if (at + table.middle + 16 > lows.size()) break;
    const auto* from = reinterpret_cast<const std::uint8_t*>(lows.data()) + at;
    for (std::size_t lane = 0; lane < 8; lane += kNumbers, from += table.middle) {
      std::uint32_t* const to = places.data() + i + lane;
      const auto bytes = hn::TableLookupBytes(load_lows(from, table.middle),
                                              hn::Load(Bytes(), table.bytes + 4 * lane));
      const auto shifts = hn::Load(Numbers(), table.shifts + lane);
      const auto low = hn::And(hn::Shr(hn::BitCast(Numbers(), bytes), shifts), mask);
      const auto high = hn::Sub(hn::LoadU(Numbers(), to), numbers);
      hn::StoreU(hn::Or(hn::ShiftLeftSame(high, static_cast<int>(low_bits)), low), Numbers(), to);
      numbers = hn::Add(numbers, step);
    }
  }
  return i;
}

#else

std::size_t join_eights(std::span<const std::byte>, unsigned, std::size_t,
                        std::span<std::uint32_t>) {
  return 0;
}

#endif

void join(std::span<const std::byte> lows, unsigned low_bits, std::size_t first,
          std::span<std::uint32_t> places) {
  const std::uint32_t mask = (1u << low_bits) - 1;
  for (std::size_t i = join_eights(lows, low_bits, first, places); i < places.size(); ++i) {
    const std::size_t number = first + i;
    const std::size_t at = number * low_bits;
    const auto low = static_cast<std::uint32_t>(load(lows.data() + at / 8) >> (at % 8)) & mask;
    places[i] = (places[i] - static_cast<std::uint32_t>(number)) << low_bits | low;
  }
}

bool ascending(std::span<const std::uint32_t> values) {
  std::size_t i = 1;
  auto all = hn::Eq(hn::Zero(U32()), hn::Zero(U32()));
  for (; i + kLanes <= values.size(); i += kLanes) {
    const auto before = hn::LoadU(U32(), values.data() + i - 1);
    all = hn::And(all, hn::Gt(hn::LoadU(U32(), values.data() + i), before));
  }
  bool result = hn::AllTrue(U32(), all);
  for (; i < values.size(); ++i) result = result && values[i] > values[i - 1];
  return result;
}

}  // namespace stretto::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernel {

HWY_EXPORT(ones);
HWY_EXPORT(join);
HWY_EXPORT(ascending);

std::size_t find_ones(std::span<const std::byte> words, std::uint32_t first,
                      std::span<std::uint32_t> places) {
  return HWY_DYNAMIC_DISPATCH(ones)(words, first, places);
}

void join_low_bits(std::span<const std::byte> lows, unsigned low_bits, std::size_t first,
                   std::span<std::uint32_t> places) {
  HWY_DYNAMIC_DISPATCH(join)(lows, low_bits, first, places);
}

bool are_ascending(std::span<const std::uint32_t> values) {
  return HWY_DYNAMIC_DISPATCH(ascending)(values);
}

}  // namespace stretto::kernel
#endif  // HWY_ONCE
