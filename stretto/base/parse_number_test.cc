// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/parse_number.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "stretto/base/fnv1a.h"

namespace stretto {
namespace {

TEST(ParseNumberTest, TakesTheWholeTextOrNothing) {
  EXPECT_EQ(parse_number<int>("-17"), -17);
  EXPECT_EQ(parse_number<double>("2.5"), 2.5);
  for (const char* text : {"", " 1", "1 ", "1x", "0x1", "+1", "99999999999"}) {
    EXPECT_EQ(parse_number<int>(text), std::nullopt) << text;
  }
  EXPECT_EQ(parse_number<std::uint8_t>("256"), std::nullopt);
}

// The values that are published for the algorithm; part by part they are the same.
TEST(Fnv1aTest, IsTheKnownOne) {
  EXPECT_EQ(fnv1a(""), 0xcbf29ce484222325u);
  EXPECT_EQ(fnv1a("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(fnv1a("foobar"), 0x85944171f73967e8u);
  EXPECT_EQ(fnv1a("bar", fnv1a("foo")), fnv1a("foobar"));
}

}  // namespace
}  // namespace stretto
