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
constexpr std::size_t kWordBits = 64;
constexpr std::size_t kWordBytes = 8;

HWY_INLINE std::uint64_t load(const std::byte* from) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, kWordBytes);
  return word;
}

std::size_t ones(std::span<const std::byte> words, std::uint32_t first,
                 std::span<std::uint32_t> places) {
  const auto lanes = hn::Iota(U32(), 0);
  std::size_t count = 0;
  for (std::size_t at = 0; at < words.size(); at += kWordBytes, first += kWordBits) {
    const std::uint64_t word = load(words.data() + at);
    if (HWY_UNLIKELY(count + kWordBits > places.size())) {
      for (std::uint64_t bits = word; bits != 0; bits &= bits - 1, ++count) {
        const auto bit = static_cast<std::uint32_t>(std::countr_zero(bits));
        if (count < places.size()) places[count] = first + bit;
      }
      continue;
    }
    // Whole vectors are stored: what is beyond the ones found is overwritten later.
    for (std::size_t lane = 0; lane < kWordBits; lane += kLanes) {
      const std::uint64_t part = word >> lane;
      HWY_ALIGN std::uint8_t bits[kWordBytes];
      std::memcpy(bits, &part, kWordBytes);
      const auto mask = hn::LoadMaskBits(U32(), bits);
      const auto here = hn::Set(U32(), first + static_cast<std::uint32_t>(lane));
      hn::StoreU(hn::Compress(hn::Add(lanes, here), mask), U32(), places.data() + count);
      count += hn::CountTrue(U32(), mask);
    }
  }
  return count;
}

#if HWY_TARGET != HWY_SCALAR

using Bytes = hn::FixedTag<std::uint8_t, 16>;
using Four = hn::FixedTag<std::uint32_t, 4>;

// What brings four numbers of as many bits, which begin at bit `begin` of 16 bytes, to four lanes.
struct Unpacking {
  Unpacking(unsigned begin, unsigned low_bits) {
    for (unsigned lane = 0; lane < 4; ++lane) {
      const unsigned bit = begin + lane * low_bits;
      for (unsigned byte = 0; byte < 4; ++byte) {
        bytes[4 * lane + byte] = static_cast<std::uint8_t>(bit / 8 + byte);
      }
      shifts[lane] = bit % 8;
    }
  }
  HWY_ALIGN std::uint8_t bytes[16];
  HWY_ALIGN std::uint32_t shifts[4];
};

// As many as it can by vectors, eight of which begin at a byte; returns how many.
std::size_t join_eights(std::span<const std::byte> lows, unsigned low_bits, std::size_t first,
                        std::span<std::uint32_t> places) {
  // A number and the bits before it in its first byte must fit into a lane.
  if (low_bits > 25) return 0;
  const unsigned middle = 4 * low_bits / 8;
  const Unpacking even(0, low_bits), odd(4 * low_bits % 8, low_bits);
  const auto even_bytes = hn::Load(Bytes(), even.bytes), odd_bytes = hn::Load(Bytes(), odd.bytes);
  const auto even_shifts = hn::Load(Four(), even.shifts);
  const auto odd_shifts = hn::Load(Four(), odd.shifts);
  const auto mask = hn::Set(Four(), (1u << low_bits) - 1);
  const auto join_four = [&](const std::uint8_t* from, auto bytes, auto shifts, std::uint32_t* to,
                             std::size_t number) HWY_ATTR {
    const auto lanes = hn::BitCast(Four(), hn::TableLookupBytes(hn::LoadU(Bytes(), from), bytes));
    const auto low = hn::And(hn::Shr(lanes, shifts), mask);
    const auto numbers = hn::Iota(Four(), static_cast<std::uint32_t>(number));
    const auto high = hn::Sub(hn::LoadU(Four(), to), numbers);
    hn::StoreU(hn::Or(hn::ShiftLeftSame(high, static_cast<int>(low_bits)), low), Four(), to);
  };
  std::size_t i = 0;
  for (; i + 8 <= places.size(); i += 8) {
    const std::size_t at = (first + i) / 8 * low_bits;
    if (at + middle + 16 > lows.size()) break;
    const auto* const from = reinterpret_cast<const std::uint8_t*>(lows.data()) + at;
    join_four(from, even_bytes, even_shifts, places.data() + i, first + i);
    join_four(from + middle, odd_bytes, odd_shifts, places.data() + i + 4, first + i + 4);
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
