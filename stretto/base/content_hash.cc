// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/content_hash.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

#include "stretto/base/random.h"

namespace stretto {
namespace {

constexpr std::size_t kStep = 2 * sizeof(std::uint64_t);
constexpr std::size_t kLanes = 4;  // Independent chains hide the latency of the multiplication.
constexpr std::uint64_t kOther = 0x9e3779b97f4a7c15u;

// Hashes up to 16 bytes with one multiplication. It combines the upper half of the product, which
// depends on every bit of both factors, with the lower half. If one factor is zero, with a
// probability of 2^-64, the other one is lost.
std::uint64_t mix(std::uint64_t state, const std::byte* from, std::size_t bytes) {
  std::uint64_t words[2] = {};
  std::memcpy(words, from, bytes);
  __extension__ using Product = unsigned __int128;
  const Product product = Product{words[0] ^ kOther} * (words[1] ^ state);
  return static_cast<std::uint64_t>(product >> 64) ^ static_cast<std::uint64_t>(product);
}

// With a loop, the lanes would be kept in memory, and each step would wait for the store of the
// last one.
template <std::size_t... lane>
void mix_all(std::array<std::uint64_t, kLanes>& lanes, const std::byte* from,
             std::index_sequence<lane...>) {
  ((lanes[lane] = mix(lanes[lane], from + lane * kStep, kStep)), ...);
}

}  // namespace

std::uint64_t content_hash(ConstByteSpan bytes, std::uint64_t seed) {
  Random start(seed ^ bytes.size());
  std::array<std::uint64_t, kLanes> lanes;
  for (std::uint64_t& lane : lanes) lane = start.next();
  std::size_t at = 0;
  for (; at + kLanes * kStep <= bytes.size(); at += kLanes * kStep) {
    mix_all(lanes, bytes.data() + at, std::make_index_sequence<kLanes>());
  }
  for (; at < bytes.size(); at += kStep) {
    lanes[0] = mix(lanes[0], bytes.data() + at, std::min(kStep, bytes.size() - at));
  }
  std::uint64_t hash = start.next();
  for (const std::uint64_t lane : lanes) hash = Random(hash ^ lane).next();
  return hash;
}

}  // namespace stretto
