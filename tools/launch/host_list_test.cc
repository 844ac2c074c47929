// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/host_list.h"

#include <gtest/gtest.h>

#include "tests/support/expect_contains.h"
#include "tests/support/files.h"

namespace stretto::launch {
namespace {

std::string print(const Result<std::vector<HostShare>>& hosts) {
  if (!hosts.ok()) return std::string(hosts.status().message());
  std::string text;
  for (const auto& [name, ranks] : hosts.value()) text += fmt::format("{}:{} ", name, ranks);
  return text;
}

TEST(HostList, IsNamesOrAFile) {
  EXPECT_EQ(print(read_hosts("node0,me@node1", 2)), "node0:2 me@node1:2 ");
  const TemporaryFolder folder;
  const std::string path = folder / "hosts";
  write_file(path, "# mine\n\nnode0 slots=4 # fast\n  node1\n");
  EXPECT_EQ(print(read_hosts(path, 2)), "node0:4 node1:2 ");
}

TEST(HostList, SaysWhatItDoesNotUnderstand) {
  EXPECT_EQ(print(read_hosts(",", 2)), "--hosts , names no host");
  EXPECT_EQ(print(read_hosts("-oProxyCommand=x", 2)), "\"-oProxyCommand=x\" is no host");
  EXPECT_EQ(print(read_hosts("./host", 2)), "\"./host\" is no host, and no such file is there");
  for (const char* word : {"slots=0", "slots=2x", "cpus=3"}) {
    expect_contains(print(read_hosts(std::string("a ") + word, 2)), word);
  }
}

}  // namespace
}  // namespace stretto::launch
