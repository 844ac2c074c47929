// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/kernel/quantize.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "stretto/kernel/targets.h"  // Before Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "stretto/kernel/quantize.cc"
#include "hwy/foreach_target.h"  // Must come before highway.h.

#include "stretto/kernel/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using I8 = hn::Rebind<std::int8_t, F32>;
constexpr std::size_t kLanes = hn::MaxLanes(F32());
constexpr std::uint32_t kInt8ScaleMax = 248;

// `count`, rounded up to whole vectors.
constexpr std::size_t padded(std::size_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

// Replaces infinity and NaN by zero.
HWY_INLINE hn::Vec<F32> finite_or_zero(hn::Vec<F32> value) {
  const auto finite = hn::Lt(magnitudes(value), hn::Set(I32(), 0x7F800000));
  return hn::IfThenElseZero(hn::RebindMask(F32(), finite), value);
}

// Random numbers of 24 bits, uniform in [0, 1), from a counter: two rounds of a 32-bit mixer, each
// with half of the key. The multipliers are from Wellons' search for mixers with little bias.
class Draws {
 public:
  explicit Draws(std::uint64_t key)
      : low_(hn::Set(U32(), static_cast<std::uint32_t>(key))),
        high_(hn::Set(U32(), static_cast<std::uint32_t>(key >> 32))) {}
  HWY_INLINE hn::Vec<F32> at(std::size_t index) const {
    auto bits = hn::Iota(U32(), static_cast<std::uint32_t>(index));
    bits = mixed(hn::Add(bits, low_));
    bits = mixed(hn::Xor(bits, high_));
    const auto integer = hn::BitCast(I32(), hn::ShiftRight<8>(bits));
    return hn::Mul(hn::ConvertTo(F32(), integer), hn::Set(F32(), 0x1p-24f));
  }

 private:
  static HWY_INLINE hn::Vec<U32> mixed(hn::Vec<U32> bits) {
    bits = hn::Xor(bits, hn::ShiftRight<16>(bits));
    bits = hn::Mul(bits, hn::Set(U32(), 0x21F0AAADu));
    bits = hn::Xor(bits, hn::ShiftRight<15>(bits));
    bits = hn::Mul(bits, hn::Set(U32(), 0xD35A2D97u));
    return hn::Xor(bits, hn::ShiftRight<15>(bits));
  }

  hn::Vec<U32> low_;
  hn::Vec<U32> high_;
};

// Encodes whole vectors. `count` is a multiple of kLanes. The decoded value is read back from
// `codes`.
template <class Codec>
HWY_INLINE void half_block(float* values, std::size_t count, float limit, std::uint16_t* codes) {
  const auto most = hn::Set(F32(), limit);
  for (std::size_t i = 0; i < count; i += kLanes) {
    const auto value = hn::LoadU(F32(), values + i);
    const auto finite = hn::Lt(magnitudes(value), hn::Set(I32(), 0x7F800000));
    const auto nearest = hn::Max(hn::Min(value, most), hn::Neg(most));
    const auto allowed = hn::IfThenElse(hn::RebindMask(F32(), finite), nearest, value);
    hn::StoreU(narrow_lanes<Codec>(allowed), HalfU16(), codes + i);
    hn::StoreU(hn::Sub(value, load_wide<Codec>(codes + i)), F32(), values + i);
  }
}

template <class Codec>
void half_encode(float* values, std::size_t count, float limit, std::uint16_t* codes) {
  const std::size_t whole = count / kLanes * kLanes, rest = count - whole;
  half_block<Codec>(values, whole, limit, codes);
  HWY_ALIGN float room[kLanes] = {};
  HWY_ALIGN std::uint16_t code_room[kLanes];
  std::copy(values + whole, values + count, room);
  half_block<Codec>(room, kLanes, limit, code_room);
  std::copy(room, room + rest, values + whole);
  std::copy(code_room, code_room + rest, codes + whole);
}

template <class Codec>
void half_add(const std::uint16_t* codes, float* sums, std::size_t count) {
  const auto add = [](const std::uint16_t* from, float* to) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(F32(), to), load_wide<Codec>(from)), F32(), to);
  };
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) add(codes + i, sums + i);
  HWY_ALIGN float room[kLanes] = {};
  HWY_ALIGN std::uint16_t code_room[kLanes] = {};
  std::copy(sums + i, sums + count, room);
  std::copy(codes + i, codes + count, code_room);
  add(code_room, room);
  std::copy(room, room + (count - i), sums + i);
}

void half_encode_of(DType dtype, float* values, std::size_t count, float limit,
                    std::uint16_t* codes) {
  const auto encode = dtype == DType::f16 ? &half_encode<HalfCodec> : &half_encode<BFloat16Codec>;
  encode(values, count, limit, codes);
}
void half_add_of(DType dtype, const std::uint16_t* codes, float* sums, std::size_t count) {
  const auto add = dtype == DType::f16 ? &half_add<HalfCodec> : &half_add<BFloat16Codec>;
  add(codes, sums, count);
}

// Encodes one block of whole vectors. Returns the exponent of its scale. Products with a power of
// two are exact, whether or not the compiler fuses them with the next operation.
HWY_INLINE std::uint8_t int8_block(float* values, std::size_t count, bool stochastic,
                                   const Draws& draws, std::size_t first, std::int8_t* codes) {
  auto greatest = hn::Zero(I32());
  for (std::size_t i = 0; i < count; i += kLanes) {
    const auto value = finite_or_zero(hn::LoadU(F32(), values + i));
    greatest = hn::Max(greatest, magnitudes(value));
  }
  const std::uint32_t most = greatest_of(greatest);
  std::uint32_t exponent = std::max<std::uint32_t>(7, most >> 23) - 6;
  // Above 127 * scale, which is 1.984375 * 2^6 * scale, there is no code to round up to.
  constexpr std::uint32_t kFraction = 0x7FFFFF, kOf127 = 0x7E0000;
  if (stochastic && (most & kFraction) > kOf127 && exponent < kInt8ScaleMax) ++exponent;
  const auto scale = hn::Set(F32(), std::bit_cast<float>(exponent << 23));
  const auto inverse = hn::Set(F32(), std::bit_cast<float>((254 - exponent) << 23));
  for (std::size_t i = 0; i < count; i += kLanes) {
    const auto raw = hn::LoadU(F32(), values + i);
    const auto value = finite_or_zero(raw);
    const auto scaled = hn::Mul(value, inverse);
    auto code = hn::NearestInt(scaled);
    if (stochastic) {
      // The random number is compared with the fraction. Their sum with the value would be rounded,
      // now and then up to the next integer. The fraction is exact except for values in [-1, 0],
      // where its error is at most 2^-25.
      const auto whole = hn::Floor(scaled);
      const auto goes_up = hn::Lt(draws.at(first + i), hn::Sub(scaled, whole));
      const auto step = hn::IfThenElseZero(goes_up, hn::Set(F32(), 1.0f));
      code = hn::ConvertTo(I32(), hn::Add(whole, step));
    }
    code = hn::Max(hn::Set(I32(), -127), hn::Min(code, hn::Set(I32(), 127)));
    hn::StoreU(hn::Sub(value, hn::Mul(hn::ConvertTo(F32(), code), scale)), F32(), values + i);
    const auto finite = hn::Lt(magnitudes(raw), hn::Set(I32(), 0x7F800000));
    code = hn::IfThenElse(finite, code, hn::Set(I32(), -128));
    hn::StoreU(hn::DemoteTo(I8(), code), I8(), codes + i);
  }
  return static_cast<std::uint8_t>(exponent);
}

void int8_encode(float* values, std::size_t count, bool stochastic, std::uint64_t key,
                 std::int8_t* codes, std::uint8_t* scales) {
  const Draws draws(key);
  std::size_t first = 0;
  for (; first + kInt8Block <= count; first += kInt8Block) {
    *scales++ = int8_block(values + first, kInt8Block, stochastic, draws, first, codes + first);
  }
  if (first == count) return;
  const std::size_t rest = count - first;
  HWY_ALIGN float room[kInt8Block] = {};
  HWY_ALIGN std::int8_t code_room[kInt8Block];
  std::copy(values + first, values + count, room);
  *scales = int8_block(room, padded(rest), stochastic, draws, first, code_room);
  std::copy(room, room + rest, values + first);
  std::copy(code_room, code_room + rest, codes + first);
}

HWY_INLINE void int8_add_block(const std::int8_t* codes, float scale_value, float* sums,
                               std::size_t count) {
  const auto scale = hn::Set(F32(), scale_value);
  const auto nan = hn::Set(F32(), std::numeric_limits<float>::quiet_NaN());
  for (std::size_t i = 0; i < count; i += kLanes) {
    const auto code = hn::PromoteTo(I32(), hn::LoadU(I8(), codes + i));
    const auto is_number = hn::RebindMask(F32(), hn::Gt(code, hn::Set(I32(), -128)));
    const auto value = hn::IfThenElse(is_number, hn::Mul(hn::ConvertTo(F32(), code), scale), nan);
    hn::StoreU(hn::Add(hn::LoadU(F32(), sums + i), value), F32(), sums + i);
  }
}

void int8_add(const std::int8_t* codes, const std::uint8_t* scales, float* sums,
              std::size_t count) {
  for (std::size_t first = 0; first < count; first += kInt8Block) {
    const std::uint32_t exponent = std::min<std::uint32_t>(*scales++, kInt8ScaleMax);
    const auto scale = std::bit_cast<float>(exponent << 23);
    const std::size_t length = std::min(kInt8Block, count - first);
    if (length % kLanes == 0) {
      int8_add_block(codes + first, scale, sums + first, length);
      continue;
    }
    HWY_ALIGN float room[kInt8Block] = {};
    HWY_ALIGN std::int8_t code_room[kInt8Block] = {};
    std::copy(codes + first, codes + first + length, code_room);
    std::copy(sums + first, sums + first + length, room);
    int8_add_block(code_room, scale, room, padded(length));
    std::copy(room, room + length, sums + first);
  }
}

// The mean magnitude of the first `count` elements of a block. The order of addition does not
// depend on the width of vectors. Infinite if the sum overflows.
constexpr std::size_t kPartialSums = 16;
HWY_INLINE float mean_magnitude(const float* values, std::size_t count) {
  constexpr std::size_t kVectors = std::max<std::size_t>(1, kPartialSums / kLanes);
  HWY_ALIGN float sums[kVectors * kLanes] = {};
  for (std::size_t i = 0; i < kOneBitBlock; i += kVectors * kLanes) {
    for (std::size_t j = 0; j < kVectors * kLanes; j += kLanes) {
      const auto value = hn::Abs(hn::LoadU(F32(), values + i + j));
      hn::Store(hn::Add(hn::Load(F32(), sums + j), value), F32(), sums + j);
    }
  }
  for (std::size_t width = kPartialSums / 2; width > 0; width /= 2) {
    for (std::size_t j = 0; j < width; ++j) sums[j] += sums[j + width];
  }
  return sums[0] / static_cast<float>(count);
}

// The bits of a mask; the first lane is the lowest bit.
HWY_INLINE std::uint64_t bits_of_mask(hn::Mask<F32> mask) {
  std::uint8_t bytes[8] = {};
  hn::StoreMaskBits(F32(), mask, bytes);
  return std::bit_cast<std::uint64_t>(bytes);
}
HWY_INLINE hn::Mask<F32> mask_of_bits(std::uint64_t bits) {
  const std::uint64_t lanes = bits & ((std::uint64_t{1} << kLanes) - 1);
  std::uint8_t bytes[8];
  std::memcpy(bytes, &lanes, sizeof(bytes));
  return hn::LoadMaskBits(F32(), bytes);
}

// Encodes one block: `count` values, followed by zeros up to kOneBitBlock. Returns the scale.
HWY_INLINE float one_bit_block(float* values, std::size_t count, bool stochastic,
                               const Draws& draws, std::size_t first, std::uint64_t* signs) {
  auto top = hn::Zero(I32());
  for (std::size_t i = 0; i < kOneBitBlock; i += kLanes) {
    top = hn::Max(top, magnitudes(hn::LoadU(F32(), values + i)));
  }
  const std::uint32_t greatest = greatest_of(top);
  std::fill(signs, signs + one_bit_words(count), std::uint64_t{0});
  if (greatest >= 0x7F800000) {
    std::fill(values, values + count, 0.0f);
    return std::numeric_limits<float>::quiet_NaN();
  }
  // For smaller magnitudes, half of the inverse would be infinite; for greater ones, twice the
  // scale.
  const bool draw = stochastic && greatest >= 0x01000000 && greatest < 0x7F000000;
  const auto top_value = std::bit_cast<float>(greatest);
  const float scale = draw ? top_value : std::min(top_value, mean_magnitude(values, count));
  const auto plus = hn::Set(F32(), scale);
  const auto half_inverse = hn::Set(F32(), 0.5f / scale);
  for (std::size_t i = 0; i < padded(count); i += kLanes) {
    const auto value = hn::LoadU(F32(), values + i);
    auto negative = hn::Lt(value, hn::Zero(F32()));
    if (draw) {
      // Both sides are in [-1, 0]: the probability of the positive code minus 1, and the random
      // number minus 1. The greatest value always becomes positive and its negative always
      // negative, even if both sides round to -1.
      const auto odds = hn::Mul(hn::Sub(value, plus), half_inverse);
      const auto drawn = hn::Add(draws.at(first + i), hn::Set(F32(), 0x1p-25f));
      negative =
          hn::Or(hn::Lt(odds, hn::Sub(drawn, hn::Set(F32(), 1.0f))), hn::Eq(value, hn::Neg(plus)));
    }
    const auto said = hn::IfThenElse(negative, hn::Neg(plus), plus);
    hn::StoreU(hn::Sub(value, said), F32(), values + i);
    signs[i / 64] |= bits_of_mask(negative) << (i % 64);
  }
  if (count % 64 != 0) signs[count / 64] &= (std::uint64_t{1} << (count % 64)) - 1;
  return scale;
}

void one_bit_encode(float* values, std::size_t count, bool stochastic, std::uint64_t key,
                    std::uint64_t* signs, float* scales) {
  const Draws draws(key);
  std::size_t first = 0;
  for (; first + kOneBitBlock <= count; first += kOneBitBlock) {
    *scales++ =
        one_bit_block(values + first, kOneBitBlock, stochastic, draws, first, signs + first / 64);
  }
  if (first == count) return;
  const std::size_t rest = count - first;
  HWY_ALIGN float room[kOneBitBlock] = {};
  HWY_ALIGN std::uint64_t sign_room[kOneBitBlock / 64];
  std::copy(values + first, values + count, room);
  *scales = one_bit_block(room, rest, stochastic, draws, first, sign_room);
  std::copy(room, room + rest, values + first);
  std::copy(sign_room, sign_room + one_bit_words(rest), signs + first / 64);
}

void one_bit_add(const std::uint64_t* signs, const float* scales, float* sums, std::size_t count) {
  for (std::size_t first = 0; first < count; first += kOneBitBlock) {
    const float scale = *scales++;
    const auto plus = hn::Set(F32(), scale);
    const auto minus = hn::Set(F32(), -scale);
    const std::size_t last = std::min(count, first + kOneBitBlock);
    std::size_t i = first;
    for (; i + kLanes <= last; i += kLanes) {
      const auto negative = mask_of_bits(signs[i / 64] >> (i % 64));
      const auto value = hn::IfThenElse(negative, minus, plus);
      hn::StoreU(hn::Add(hn::LoadU(F32(), sums + i), value), F32(), sums + i);
    }
    for (; i < last; ++i) sums[i] += (signs[i / 64] >> (i % 64) & 1) != 0 ? -scale : scale;
  }
}

}  // namespace stretto::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernel {

HWY_EXPORT(half_encode_of);
HWY_EXPORT(half_add_of);
HWY_EXPORT(int8_encode);
HWY_EXPORT(int8_add);
HWY_EXPORT(one_bit_encode);
HWY_EXPORT(one_bit_add);

void quantize_half(DType dtype, std::span<float> values, float limit,
                   std::span<std::uint16_t> codes) {
  HWY_DYNAMIC_DISPATCH(half_encode_of)(dtype, values.data(), values.size(), limit, codes.data());
}
void add_half(DType dtype, std::span<const std::uint16_t> codes, std::span<float> sums) {
  HWY_DYNAMIC_DISPATCH(half_add_of)(dtype, codes.data(), sums.data(), sums.size());
}

void quantize_int8(std::span<float> values, const Rounding& rounding, std::span<std::int8_t> codes,
                   std::span<std::uint8_t> scales) {
  HWY_DYNAMIC_DISPATCH(int8_encode)
  (values.data(), values.size(), rounding.stochastic, rounding.key, codes.data(), scales.data());
}

void add_int8(std::span<const std::int8_t> codes, std::span<const std::uint8_t> scales,
              std::span<float> sums) {
  HWY_DYNAMIC_DISPATCH(int8_add)(codes.data(), scales.data(), sums.data(), sums.size());
}

void quantize_one_bit(std::span<float> values, const Rounding& rounding,
                      std::span<std::uint64_t> signs, std::span<float> scales) {
  HWY_DYNAMIC_DISPATCH(one_bit_encode)
  (values.data(), values.size(), rounding.stochastic, rounding.key, signs.data(), scales.data());
}

void add_one_bit(std::span<const std::uint64_t> signs, std::span<const float> scales,
                 std::span<float> sums) {
  HWY_DYNAMIC_DISPATCH(one_bit_add)(signs.data(), scales.data(), sums.data(), sums.size());
}

}  // namespace stretto::kernel
#endif  // HWY_ONCE
