// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <random>
#include <string>

namespace stretto::testing {

// Returns the seed from which a test draws its cases: STRETTO_SEED or, if that is not set, a random
// number, which it prints; mixed with the test's name. ./dev sets STRETTO_SEED; otherwise a failure
// for one seed in a hundred would be gone in the next run.
inline std::uint64_t draw_seed() {
  const char* const wanted = std::getenv("STRETTO_SEED");
  const std::uint64_t seed =
      wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : std::random_device()();
  std::cout << "STRETTO_SEED=" << seed << " draws the same again" << std::endl;
  const ::testing::TestInfo* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  return seed ^ std::hash<std::string>()(std::string(test->test_suite_name()) + test->name());
}

}  // namespace stretto::testing
