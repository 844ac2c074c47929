// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <array>

#include "stretto/transport/packets/plane.h"

namespace stretto::transport::packets {
namespace {

// Another rank has passed a wrong address.
TEST(UcxPlugin, AnAddressThatIsNoneIsAFailureOfThatPeer) {
  const Result<Plugin> plugin = load_plugin("ucx", "");
  if (!plugin.ok()) GTEST_SKIP() << plugin.status().message();
  const EngineOptions options{.rank = 0, .size = 2, .in_one_process = true};
  const std::string own = make_engine(plugin.value(), options).or_throw()->address();
  const std::string blank = " 1" + own.substr(2);
  for (const std::string& wrong : {std::string(), own + "0", blank, "0x" + own.substr(2)}) {
    const auto engine = make_engine(plugin.value(), options).or_throw();
    const std::array addresses = {engine->address(), wrong.c_str()};
    engine->connect(addresses.data());
    const std::array<std::byte, 4> bytes{};
    (void)engine->send(1, bytes.data(), bytes.size());
    EXPECT_STREQ(engine->failure(1), "Address not valid") << wrong.substr(0, 4);
  }
}

}  // namespace
}  // namespace stretto::transport::packets
