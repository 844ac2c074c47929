// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/own_address.h"

#include <gtest/gtest.h>

#include "stretto/base/clock.h"

namespace stretto::bootstrap {
namespace {

TEST(OwnAddress, IsThatOfAnInterfaceOrInASubnet) {
  EXPECT_EQ(address_in("lo").or_throw(), "127.0.0.1");
  EXPECT_EQ(address_in("127.0.0.0/8").or_throw(), "127.0.0.1");
  EXPECT_EQ(address_in("127.0.0.1/32").or_throw(), "127.0.0.1");
}

TEST(OwnAddress, ThatThereIsNotIsAnErrorThatNamesTheOthers) {
  for (const char* nowhere :
       {"nothing0", "198.51.100.0/24", "127.0.0.0/33", "lo/8", "127.0.0.1", ""}) {
    const Status status = address_in(nowhere).status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << nowhere;
    EXPECT_NE(status.message().find("lo 127.0.0.1"), std::string::npos) << status.message();
  }
}

TEST(OwnAddress, TowardsThisHostIsLoopback) {
  const std::string own =
      address_towards("127.0.0.1", 9, Deadline::after(std::chrono::seconds(10))).or_throw();
  EXPECT_EQ(own, "127.0.0.1");
  EXPECT_TRUE(is_loopback(own));
}

TEST(OwnAddress, ANumericAddressOrLocalhostIsWhatAServerBinds) {
  const WaitLimit soon = Deadline::after(std::chrono::seconds(10));
  for (const char* host : {"127.0.0.1", "127.0.1.1", "::1", "localhost"}) {
    EXPECT_EQ(address_to_bind(host, 9, soon).or_throw(), host);
  }
}

TEST(OwnAddress, LoopbackIsToldFromOthers) {
  for (const char* loopback : {"127.0.0.1", "127.0.1.1", "::1"}) {
    EXPECT_TRUE(is_loopback(loopback)) << loopback;
  }
  for (const char* other : {"10.0.0.1", "128.0.0.1", "fd00::1", "::", "fe80::1%eth0"}) {
    EXPECT_FALSE(is_loopback(other)) << other;
  }
}

}  // namespace
}  // namespace stretto::bootstrap
