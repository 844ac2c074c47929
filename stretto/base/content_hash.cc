// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/content_hash.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

#include "stretto/base/random.h"

namespace stretto {
namespace {

// Odd, so that multiplication loses nothing: a lane is a bijection of its state for each word.
constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15u;
constexpr std::uint64_t kScrambler = 0xd6e8feb86659fd93u;
constexpr std::size_t kLanes = 4;  // Independent chains hide the latency of the multiplication.

// A word is scrambled before it meets the state: otherwise a flip of its top bit would pass through
// the multiplication as one predictable bit, which a flip in the next word could undo.
std::uint64_t mix(std::uint64_t state, std::uint64_t word) {
  word *= kScrambler;
  word ^= word >> 32;
  return std::rotl((state ^ word) * kMultiplier, 29);
}

std::uint64_t load(const std::byte* from, std::size_t bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, bytes);
  return word;
}

}  // namespace

std::uint64_t content_hash(ConstByteSpan bytes, std::uint64_t seed) {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  Random start(seed ^ bytes.size());
  std::array<std::uint64_t, kLanes> lanes;
  for (std::uint64_t& lane : lanes) lane = start.next();
  std::size_t at = 0;
  for (; at + kLanes * kWord <= bytes.size(); at += kLanes * kWord) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = mix(lanes[lane], load(bytes.data() + at + lane * kWord, kWord));
    }
  }
  for (; at < bytes.size(); at += kWord) {
    const std::size_t rest = bytes.size() - at;
    lanes[0] = mix(lanes[0], load(bytes.data() + at, rest < kWord ? rest : kWord));
  }
  std::uint64_t hash = start.next();
  for (const std::uint64_t lane : lanes) hash = Random(mix(hash, lane)).next();
  return hash;
}

}  // namespace stretto
