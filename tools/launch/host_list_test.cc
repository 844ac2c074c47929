// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/host_list.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "stretto/base/file_descriptor.h"
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

// PBS writes a line for each slot.
TEST(HostList, LinesOfAHostThatFollowEachOtherAddUp) {
  EXPECT_EQ(print(read_hosts("node0,node0,node1", 1)), "node0:2 node1:1 ");
  const TemporaryFolder folder;
  const std::string path = folder / "hosts";
  write_file(path, "node0 slots=4\nnode0\n# the next\nnode1\nnode1\n");
  EXPECT_EQ(print(read_hosts(path, 2)), "node0:6 node1:4 ");
  EXPECT_EQ(print(read_hosts("node0 slots=65536,node0", 1)), "node0 has more than 65536 ranks");
}

TEST(HostList, RefusesAHostThatIsNamedAgainAfterOthers) {
  expect_contains(print(read_hosts("node0,node1,node0", 1)),
                  "node0 is named again after other hosts");
}

TEST(HostList, SeveralHostsDoNotMeetWhereEachMeansItself) {
  for (const char* first : {"localhost", "me@localhost", "127.0.1.1", "::1"}) {
    LaunchOptions options{.hosts = {{first, 1}, {"node1", 1}}};
    expect_failure(check_meeting_place(options), StatusCode::invalid_argument,
                   "by which every host means itself");
    options.rendezvous = "node0:29600";
    EXPECT_TRUE(check_meeting_place(options).ok()) << first;
    EXPECT_TRUE(check_meeting_place({.hosts = {{first, 2}}}).ok()) << first;
  }
  EXPECT_TRUE(check_meeting_place({.hosts = {{"node0", 1}, {"localhost", 1}}}).ok());
}

TEST(HostList, IsReadFromAPipe) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const FileDescriptor reading(ends[0]);
  FileDescriptor writing(ends[1]);
  ASSERT_EQ(::write(writing.get(), "node0\nnode1\n", 12), 12);
  writing.reset();
  EXPECT_EQ(print(read_hosts(fmt::format("/dev/fd/{}", reading.get()), 2)), "node0:2 node1:2 ");
}

TEST(HostList, SaysWhyAFileCannotBeOpened) {
  const TemporaryFolder folder;
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  const std::string path = folder / "hosts";  // Root could read a file without rights.
  ASSERT_LT(path.size(), sizeof(address.sun_path));
  path.copy(address.sun_path, path.size());
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(print(read_hosts(path, 2)), "--hosts " + path + ": No such device or address");
}

TEST(HostList, SaysWhatItDoesNotUnderstand) {
  EXPECT_EQ(print(read_hosts(",", 2)), "--hosts , names no host");
  EXPECT_EQ(print(read_hosts("-oProxyCommand=x", 2)), "\"-oProxyCommand=x\" is no host");
  EXPECT_EQ(print(read_hosts("./host", 2)), "\"./host\" is no host, and no such file is there");
  for (const char* word : {"slots=0", "slots=2x", "cpus=3", "slots=2 slots=3"}) {
    expect_contains(print(read_hosts(std::string("a ") + word, 2)), "is not understood");
  }
}

}  // namespace
}  // namespace stretto::launch
