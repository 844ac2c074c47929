// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "stretto/base/clock.h"
#include "stretto/base/log.h"
#include "stretto/bootstrap/own_address.h"
#include "stretto/bootstrap/peer_user.h"
#include "stretto/bootstrap/socket.h"
#include "stretto/bootstrap/tcp_links.h"
#include "tests/support/expect_contains.h"
#include "tests/support/fake_environment.h"
#include "tests/support/soon.h"

namespace stretto::bootstrap {
namespace {

TEST(OwnAddress, IsThatOfAnInterfaceOrInASubnet) {
  EXPECT_EQ(address_in("lo").or_throw(), "127.0.0.1");
  EXPECT_EQ(address_in("127.0.0.0/8").or_throw(), "127.0.0.1");
  EXPECT_EQ(address_in("127.0.0.1/32").or_throw(), "127.0.0.1");
  EXPECT_EQ(address_in("126.0.0.0/7").or_throw(), "127.0.0.1");
}

TEST(OwnAddress, ThatThereIsNotIsAnErrorThatNamesTheOthers) {
  for (const char* nowhere :
       {"nothing0", "198.51.100.0/24", "127.64.0.0/10", "127.0.0.0/33", "lo/8", "127.0.0.1", ""}) {
    const Status status = address_in(nowhere).status();
    expect_failure(status, StatusCode::invalid_argument, "lo 127.0.0.1");
  }
}

TEST(OwnAddress, TheWayToThisHostIsLoopback) {
  const Route route =
      route_to("127.0.0.2", 9, Deadline::after(std::chrono::seconds(10))).or_throw();
  EXPECT_EQ(route.own, "127.0.0.1");
  EXPECT_EQ(route.other, "127.0.0.2");
  // Nobody else can reach this host there.
  const std::vector<std::string> own = own_addresses();
  EXPECT_EQ(std::ranges::count(own, route.own), 0);
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
  EXPECT_TRUE(names_interface("fe80::1%eth0"));
  EXPECT_FALSE(names_interface("fd00::1"));
}

using std::chrono::milliseconds;

TEST(Socket, ConnectsBothWaysOverTcp) {
  const FileDescriptor listener = listen_tcp("127.0.0.1", 0).or_throw();
  const int port = local_port(listener.get()).or_throw();
  const FileDescriptor client = connect_tcp("localhost", port, soon()).or_throw();
  const FileDescriptor server = accept(listener.get(), soon()).or_throw();
  EXPECT_EQ(peer_name(client.get()), "127.0.0.1:" + std::to_string(port));
  EXPECT_EQ(local_host(server.get()).or_throw(), "127.0.0.1");
  EXPECT_NE(::fcntl(client.get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(::fcntl(server.get(), F_GETFD) & FD_CLOEXEC, 0);

  // More than the socket's buffers hold, so that both ends have to wait for each other.
  const std::vector<std::byte> sent(8 << 20, std::byte{42});
  std::vector<std::byte> received(sent.size());
  std::thread writer([&] { EXPECT_TRUE(write_all(client.get(), sent, soon()).ok()); });
  EXPECT_TRUE(read_exactly(server.get(), received, soon()).ok());
  writer.join();
  EXPECT_EQ(received, sent);
}

TEST(Socket, WaitsForAListenerThatStartsLater) {
  FileDescriptor listener = listen_tcp("127.0.0.1", 0).or_throw();
  const int port = local_port(listener.get()).or_throw();
  listener.reset();
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(60));
    listener = listen_tcp("127.0.0.1", port).or_throw();
  });
  const auto client = connect_tcp("127.0.0.1", port, soon());
  EXPECT_TRUE(client.ok()) << client.status().message();
  late.join();
}

// At the first place nobody listens. At the second the queue is full, and the kernel drops more
// requests, as a firewall does.
TEST(Socket, ConnectsToWhicheverOfSeveralPlacesAnswers) {
  const FileDescriptor full = listen_tcp("127.0.0.1", 0).or_throw();
  ASSERT_EQ(::listen(full.get(), 0), 0);
  const int dropping = local_port(full.get()).or_throw();
  std::vector<Result<FileDescriptor>> queued;
  for (int i = 0; i < 3; ++i) {
    queued.push_back(connect_tcp("127.0.0.1", dropping, Deadline::after(milliseconds(100))));
  }
  ASSERT_FALSE(queued.back().ok()) << "the queue is not full";
  FileDescriptor closed = listen_tcp("127.0.0.1", 0).or_throw();
  const int refusing = local_port(closed.get()).or_throw();
  closed.reset();
  const FileDescriptor listener = listen_tcp("127.0.0.1", 0).or_throw();
  const int port = local_port(listener.get()).or_throw();
  const TimePoint start = Clock::now();
  const FileDescriptor client = connect_tcp(std::vector<HostPort>{{"127.0.0.1", refusing},
                                                                  {"127.0.0.1", dropping},
                                                                  {"127.0.0.1", port}},
                                            soon())
                                    .or_throw();
  EXPECT_EQ(peer_name(client.get()), fmt::format("127.0.0.1:{}", port));
  EXPECT_GE(Clock::now() - start, milliseconds(250)) << "the place before it has its head start";
  EXPECT_LT(Clock::now() - start, milliseconds(1000));
}

// A rank listens at all addresses if the name of its host is a loopback address there.
TEST(Socket, OfAllAddressesTakesIpv4AndNamesItAsThePeerDoes) {
  auto listener = listen_tcp("::", 0);
  if (!listener.ok()) GTEST_SKIP() << listener.status().message();
  const int port = local_port(listener->get()).or_throw();
  const FileDescriptor client = connect_tcp("127.0.0.1", port, soon()).or_throw();
  const FileDescriptor server = accept(listener->get(), soon()).or_throw();
  EXPECT_EQ(local_host(server.get()).or_throw(), "127.0.0.1");
  EXPECT_EQ(peer_name(server.get()),
            fmt::format("127.0.0.1:{}", local_port(client.get()).or_throw()));
  EXPECT_EQ(peer_user(server.get()), ::geteuid());
}

TEST(Socket, GivesUpConnectingAtTheDeadlineAndSaysWhy) {
  FileDescriptor listener = listen_tcp("127.0.0.1", 0).or_throw();
  const int port = local_port(listener.get()).or_throw();
  listener.reset();
  const TimePoint start = Clock::now();
  const auto client = connect_tcp("127.0.0.1", port, Deadline::after(milliseconds(50)));
  ASSERT_FALSE(client.ok());
  expect_failure(client.status(), StatusCode::timeout, "Connection refused");
  // This also holds if no time is left to look up the name once more.
  const auto named = connect_tcp("localhost", port, Deadline::after(milliseconds(50)));
  expect_failure(named.status(), StatusCode::timeout, "Connection refused");
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
}

TEST(Socket, ConnectsOverAnAbstractUnixSocket) {
  const std::string name = "stretto-socket-test-" + std::to_string(::getpid());
  const FileDescriptor listener = listen_unix_abstract(name).or_throw();
  EXPECT_FALSE(listen_unix_abstract(name).ok()) << "the name is taken";
  const FileDescriptor client = connect_unix_abstract(name, soon()).or_throw();
  const FileDescriptor server = accept(listener.get(), soon()).or_throw();
  EXPECT_EQ(peer_name(server.get()), "a process of this host");
  EXPECT_EQ(listen_unix_abstract("").status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(listen_unix_abstract(std::string(108, 'n')).status().code(),
            StatusCode::invalid_argument);
}

// The name comes from the store.
TEST(Socket, AUnixSocketsNameCannotSteerATerminal) {
  const Status status =
      connect_unix_abstract("a\x1b[2J", Deadline::after(milliseconds(5))).status();
  expect_failure(status, StatusCode::timeout, "could not connect to the Unix socket @a?[2J within");
}

TEST(Socket, ReadingEndsAtTheDeadlineAndAtTheEndOfTheStream) {
  const FileDescriptor listener = listen_tcp("127.0.0.1", 0).or_throw();
  FileDescriptor client =
      connect_tcp("127.0.0.1", local_port(listener.get()).or_throw(), soon()).or_throw();
  const FileDescriptor server = accept(listener.get(), soon()).or_throw();
  EXPECT_EQ(accept(listener.get(), Deadline::after(milliseconds(5))).status().code(),
            StatusCode::timeout);
  std::array<std::byte, 4> bytes{};
  ASSERT_TRUE(write_all(client.get(), ConstByteSpan(bytes).first(1), soon()).ok());
  const Status late = read_exactly(server.get(), bytes, Deadline::after(milliseconds(20)));
  expect_failure(late, StatusCode::timeout, "only 1 of 4 bytes");
  client.reset();
  EXPECT_EQ(read_exactly(server.get(), bytes, soon()).code(), StatusCode::peer_lost);
}

TEST(Socket, WritingEndsAtTheDeadlineWhenNobodyReads) {
  const FileDescriptor listener = listen_tcp("127.0.0.1", 0).or_throw();
  const FileDescriptor client =
      connect_tcp("127.0.0.1", local_port(listener.get()).or_throw(), soon()).or_throw();
  const std::vector<std::byte> bytes(16 << 20);
  EXPECT_EQ(write_all(client.get(), bytes, Deadline::after(milliseconds(50))).code(),
            StatusCode::timeout);
}

// Makes a link of a new connection. `socket` becomes the descriptor of the connection.
Status make_link(transport::Endpoint::Parts& parts, int& socket, TcpLinkOptions options) {
  const FileDescriptor listener = listen_tcp("127.0.0.1", 0).or_throw();
  FileDescriptor client =
      connect_tcp("127.0.0.1", local_port(listener.get()).or_throw(), soon()).or_throw();
  socket = client.get();
  parts.links.resize(2);
  LinkProvider::Sockets sockets(2);
  sockets[1].push_back(std::move(client));
  return tcp_links(std::move(options))->make_links(parts, std::move(sockets), soon());
}

// Every system has reno, and lets everybody use it.
TEST(Socket, OfALinkHasTheCongestionControlThatIsAskedFor) {
  transport::Endpoint::Parts parts;
  int socket = -1;
  ASSERT_TRUE(make_link(parts, socket, {.congestion_control = "reno"}).ok());
  std::array<char, 16> control{};
  socklen_t bytes = sizeof(control);
  ASSERT_EQ(::getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, control.data(), &bytes), 0);
  EXPECT_STREQ(control.data(), "reno");
  transport::Endpoint::Parts none;
  const Status unknown = make_link(none, socket, {.congestion_control = "none such"});
  expect_failure(unknown, StatusCode::system, "STRETTO_CONGESTION_CONTROL=none such");
  expect_failure(unknown, StatusCode::system, "tcp_available_congestion_control lists");
}

// Returns the address at which rank 0 of `cards` listens. `log` becomes what is logged about it.
std::string bind_address(const std::vector<RankCard>& cards, TcpLinkOptions options,
                         std::string& log) {
  const auto links = tcp_links(std::move(options));
  ::testing::internal::CaptureStderr();
  configure_log(FakeEnvironment(Variables{{"STRETTO_LOG", "info"}}), "stretto");
  Result<std::string> address = links->bind_address(0, 0, cards);
  (void)links->bind_address(0, 1, cards);
  configure_log(FakeEnvironment(Variables{{"STRETTO_LOG", "warning"}}), "stretto");
  log = ::testing::internal::GetCapturedStderr();
  return std::move(address).or_throw();
}

TEST(TcpLinks, SayWhereTheirAddressComesFromAndWhatIsNotRead) {
  RankCard own;
  own.address = "192.0.2.1";
  RankCard elsewhere = own;
  elsewhere.machine = "another";
  const std::string foreign = "NCCL_SOCKET_IFNAME=eth1";
  std::string log;
  EXPECT_EQ(bind_address({own, elsewhere}, {.foreign_network = foreign}, log), "192.0.2.1");
  expect_contains(log, "other ranks reach this one at 192.0.2.1: from it leads its route to the");
  const std::string warning =
      "warning: NCCL_SOCKET_IFNAME=eth1 is not read by stretto: set STRETTO";
  expect_contains(log, warning);
  EXPECT_EQ(log.find(warning), log.rfind(warning)) << "once";

  // Within a host no network matters.
  EXPECT_EQ(bind_address({own, own}, {.foreign_network = foreign}, log), "192.0.2.1");
  expect_lacks(log, "NCCL");
  EXPECT_EQ(bind_address({own, elsewhere}, {.networks = {"lo"}}, log), "127.0.0.1");
  expect_contains(log, "at 127.0.0.1 (lo): lo from STRETTO_NETWORK");
}

TEST(TcpLinks, AddressesThatNameAnInterfaceAreForWantOfOthers) {
  RankCard own;
  own.address = "fe80::1%eth0";
  RankCard elsewhere;
  elsewhere.machine = "another";
  std::string log;
  EXPECT_EQ(bind_address({own, own}, {}, log), "fe80::1%eth0");
  const bool has_others = !own_addresses().empty();
  EXPECT_EQ(bind_address({own, elsewhere}, {}, log), has_others ? any_address() : own.address);
}

TEST(HostPort, ReadsAndWritesAddresses) {
  EXPECT_EQ(parse_host_port("node0:29600")->host, "node0");
  EXPECT_EQ(parse_host_port("node0:29600")->port, 29600);
  EXPECT_EQ(parse_host_port("[fe80::1]:1")->host, "fe80::1");
  EXPECT_EQ(format_host_port("fe80::1", 1), "[fe80::1]:1");
  EXPECT_EQ(format_host_port("10.0.0.7", 2), "10.0.0.7:2");
  for (const char* bad :
       {"", "node0", ":1", "node0:", "node0:0", "node0:65536", "node0:1x", "fe80::1", "[]:1"}) {
    EXPECT_EQ(parse_host_port(bad).status().code(), StatusCode::invalid_argument) << bad;
  }
  const Status steering = parse_host_port("node\x1b[2J\x9b:1").status();
  expect_failure(steering, StatusCode::invalid_argument, "\"node?[2J?:1\" is no address");
  const std::vector<HostPort> several = parse_host_ports("10.0.0.7:2,[fd00::1]:3").or_throw();
  ASSERT_EQ(several.size(), 2u);
  EXPECT_EQ(several[1].host, "fd00::1");
  for (const char* bad : {"", "10.0.0.7:2,", ",10.0.0.7:2", "10.0.0.7:2,,node0:1",
                          "a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1"}) {
    EXPECT_EQ(parse_host_ports(bad).status().code(), StatusCode::invalid_argument) << bad;
  }
}

TEST(Socket, ListensOnTheFirstFreePortOfARange) {
  const WaitLimit soon = Deadline::after(std::chrono::seconds(10));
  // Somewhere among the ports that the system gives out, two neighbours are free.
  for (int attempt = 0; attempt < 100; ++attempt) {
    const FileDescriptor first = listen_tcp("127.0.0.1", 0).or_throw();
    const int port = local_port(first.get()).or_throw();
    const auto second = listen_tcp("127.0.0.1", PortRange{port, port + 1}, soon);
    if (!second.ok()) continue;
    EXPECT_EQ(local_port(second.value().get()).or_throw(), port + 1);
    const Status full = listen_tcp("127.0.0.1", PortRange{port, port + 1}, soon).status();
    expect_failure(full, StatusCode::system, "no port from");
    const auto links = tcp_links({.ports = {port, port + 1}});
    const Status of_links = links->listen("127.0.0.1", soon).status();
    expect_failure(of_links, StatusCode::system, "STRETTO_PORTS: no port from");
    return;
  }
  FAIL() << "no two ports next to each other are free";
}

TEST(Socket, PortsHaveAForm) {
  EXPECT_EQ(parse_port_range("29600-29631").or_throw(), (PortRange{29600, 29631}));
  EXPECT_EQ(parse_port_range("29600").or_throw(), (PortRange{29600, 29600}));
  for (const char* bad : {"", "-", "0", "5-4", "1-65536", "1-", "-5", "a-b", "1-2-3", " 1"}) {
    EXPECT_EQ(parse_port_range(bad).status().code(), StatusCode::invalid_argument) << bad;
  }
}

}  // namespace
}  // namespace stretto::bootstrap
