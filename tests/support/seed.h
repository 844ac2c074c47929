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

// What a test draws its cases from, each another: by STRETTO_SEED, or by chance. It prints which.
// ./dev sets it, or what fails for one seed in a hundred would pass when it is run again.
inline std::uint64_t draw_seed() {
  const char* const wanted = std::getenv("STRETTO_SEED");
  const std::uint64_t seed =
      wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : std::random_device()();
  std::cout << "STRETTO_SEED=" << seed << " draws the same again" << std::endl;
  const ::testing::TestInfo* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  return seed ^ std::hash<std::string>()(std::string(test->test_suite_name()) + test->name());
}

}  // namespace stretto::testing
