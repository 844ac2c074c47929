// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>

namespace stretto::testing {

// What a test draws its cases from, as it prints: STRETTO_SEED, or by chance. ./dev sets it, or
// what fails for one seed in a hundred would pass when ./dev check runs it again.
inline std::uint64_t draw_seed() {
  const char* const wanted = std::getenv("STRETTO_SEED");
  const std::uint64_t seed =
      wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : std::random_device()();
  std::cout << "STRETTO_SEED=" << seed << " draws the same again" << std::endl;
  return seed;
}

}  // namespace stretto::testing
