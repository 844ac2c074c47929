// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>

namespace stretto {

// SplitMix64 (Steele, Lea and Flood, 2014): small, fast, and the same on every machine for a given
// seed. Not for secrets: keys and nonces come from the operating system.
class Random {
 public:
  explicit constexpr Random(std::uint64_t seed) : state_(seed) {}

  constexpr std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Uniform in [0, bound), except for the bias of the modulo, which is less than bound / 2^64.
  // `bound` must be above 0.
  constexpr std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  // Uniform in [0, 1).
  constexpr double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

}  // namespace stretto
