// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>

#include "stretto/base/random.h"
#include "stretto/codec/codec.h"
#include "stretto/kernel/quantize.h"

namespace stretto::codec {

// Elements of a section. The layout of the messages of one_bit() depends on it, so it must not
// change. It is a multiple of the blocks of int8().
inline constexpr std::size_t kSection = std::size_t{64} * kernel::kOneBitBlock;

// Messages with a value for every element, which need no indices.
class WholeCodec : public Codec {
 public:
  std::size_t section() const final { return kSection; }

 protected:
  using Codec::Codec;

  bool read(const Payload& payload, std::span<float> sums) const final {
    read_section(payload.bytes, payload.count, 0, sums);
    return true;
  }
  std::optional<std::size_t> values_of(std::size_t count, std::uint64_t) const override {
    return count;
  }
  void write_extract(const Extract& extract, std::size_t,
                     std::span<std::byte> payload) const override {
    const auto end = std::ranges::copy(extract.numbers, payload.begin()).out;
    std::fill(end, payload.end(), std::byte{});  // Payloads are whole words.
  }
  bool read_extract(const Payload& payload, Extract& extract) const override {
    const auto how = extraction(payload.count, {});
    if (!how) return false;
    extract.numbers = payload.bytes.first(how->number_bytes(payload.count));
    return true;
  }
};

inline kernel::Rounding rounding_at(bool stochastic, const Position& position) {
  return {stochastic, Random(position.own_key ^ Random(position.step).next()).next()};
}

// Appends `bytes` zeros, and returns their address.
inline std::byte* append(std::vector<std::byte>& out, std::size_t bytes) {
  out.resize(out.size() + bytes);
  return out.data() + out.size() - bytes;
}

}  // namespace stretto::codec
