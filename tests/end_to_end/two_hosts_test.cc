// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Two network namespaces stand for two hosts with two ranks each: shared memory inside a host, TCP
// between the hosts.

#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tests/end_to_end/hosts.h"
#include "tests/support/expect_contains.h"
#include "tests/support/files.h"

namespace stretto {
namespace {

using testing::Arguments;
using testing::Ended;
using testing::Tool;
using testing::Variables;

// A virtual cable joins the hosts.
class TwoHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!hosts_.made()) GTEST_SKIP() << "cannot make network namespaces (needs root and iproute2)";
  }

  // The launcher of one of the hosts.
  Tool launch(int host, const Arguments& program, Variables variables = {}, int ranks = 2) {
    variables["STRETTO_JOB_KEY"] = std::string(64, '7');
    return Tool(Arguments{"run", "-n", std::to_string(ranks), "--no-prefix", "--hosts",
                          "10.77.0.1,10.77.0.2", "--host-index", std::to_string(host), "--"} +
                    program,
                variables, hosts_.on(host));
  }
  // The results of the launchers of both hosts; ranks must end well.
  std::array<Ended, 2> run_on_both(const Arguments& program, const Variables& variables = {},
                                   int ranks = 2) {
    Tool second = launch(1, program, variables, ranks);
    Tool first = launch(0, program, variables, ranks);
    const std::array<Ended, 2> ended{testing::end_of(first), testing::end_of(second)};
    for (const Ended& each : ended) EXPECT_EQ(each.status, 0) << each.errors;
    return ended;
  }

  void run_on(int host, const Arguments& command) {
    testing::Process process(hosts_.on(host) + command, {});
    ASSERT_EQ(process.status(), 0) << process.errors().finish();
  }

  // The bytes that a host has sent through an interface.
  long sent_bytes(int host, const std::string& interface) {
    testing::Process cat(
        hosts_.on(host) + Arguments{"cat", "/sys/class/net/" + interface + "/statistics/tx_bytes"},
        {});
    return std::stol(cat.output().finish());
  }

  // Starts a rank on each host; the store is on rank 0's host.
  std::array<Ended, 2> meet(const Variables& where) {
    const auto rank = [&](int number) {
      Variables variables{
          {"RANK", std::to_string(number)}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "29500"}};
      variables.insert(where.begin(), where.end());
      return testing::Process(hosts_.on(number) + Arguments{STRETTO_BIN_DIR "/join_rank_program"},
                              variables);
    };
    testing::Process one = rank(1);
    testing::Process zero = rank(0);
    return {testing::end_of(zero), testing::end_of(one)};
  }
  void expect_meeting(const Variables& where) {
    const auto ended = meet(where);
    for (const Ended& each : ended) EXPECT_EQ(each.status, 0) << each.errors;
    EXPECT_EQ(ended[1].output, "rank 1 of 2: sum 1\n");
  }

  testing::Hosts hosts_{2};
};

// The text of /etc/hosts in a network namespace.
class EtcHosts {
 public:
  EtcHosts(const std::string& name, const std::string& text) : folder_("/etc/netns/" + name) {
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ + "/hosts") << "127.0.0.1 localhost\n" << text;
  }
  ~EtcHosts() { std::filesystem::remove_all(folder_); }
  EtcHosts(const EtcHosts&) = delete;
  EtcHosts& operator=(const EtcHosts&) = delete;

 private:
  std::string folder_;
};

TEST_F(TwoHosts, MeetAtAStoreThatRankZeroHosts) { expect_meeting({{"MASTER_ADDR", "10.77.0.1"}}); }

TEST_F(TwoHosts, MeetOverIpv6AndListenOnTheirPorts) {
  for (const int host : {0, 1}) {
    run_on(host,
           {"ip", "addr", "add", fmt::format("fd77::{}/64", host + 1), "dev", "eth", "nodad"});
  }
  expect_meeting({{"MASTER_ADDR", "fd77::1"}, {"STRETTO_PORTS", "29700-29701"}});
}

// IPv4 leads nowhere, and the host's own name is a loopback address in IPv4.
TEST_F(TwoHosts, FindTheirNetworkWhereThereIsOnlyIpv6) {
  for (const int host : {0, 1}) {
    run_on(host, {"ip", "addr", "flush", "dev", "eth"});
    run_on(host,
           {"ip", "addr", "add", fmt::format("fd77::{}/64", host + 1), "dev", "eth", "nodad"});
  }
  const EtcHosts own(hosts_.on(0).back(), "127.0.1.1 node0\n");
  const EtcHosts other(hosts_.on(1).back(), "fd77::1 node0\n");
  expect_meeting({{"MASTER_ADDR", "node0"}});
}

TEST_F(TwoHosts, NeedOnePortForAllRanksOfAHost) {
  for (const std::string transport : {"auto", "tcp"}) {
    const Variables variables{{"STRETTO_PORTS", "29700"}, {"STRETTO_TRANSPORT", transport}};
    const auto ended = run_on_both({STRETTO_BIN_DIR "/join_rank_program"}, variables, 3);
    expect_contains(ended[0].output, "rank 0 of 6: sum 15\n");
    expect_lacks(ended[0].errors + ended[1].errors, "a port of its own");
  }
}

// Debian and docker set up a host like this; the default route leads into docker's network, as into
// a VPN.
TEST_F(TwoHosts, MeetByANameThatIsALoopbackAddressOnItsOwnHost) {
  for (const int host : {0, 1}) {
    run_on(host, {"ip", "link", "add", "docker0", "type", "bridge"});
    run_on(host, {"ip", "addr", "add", "172.17.0.1/16", "dev", "docker0"});
    run_on(host, {"ip", "link", "set", "docker0", "up"});
    run_on(host, {"ip", "route", "add", "default", "dev", "docker0"});
  }
  const EtcHosts own(hosts_.on(0).back(), "127.0.1.1 node0\n");
  const EtcHosts other(hosts_.on(1).back(), "10.77.0.1 node0\n");
  expect_meeting({{"MASTER_ADDR", "node0"}});
  expect_meeting({{"MASTER_ADDR", "node0"}, {"STRETTO_NETWORK", "10.77.0.0/24"}});
}

// A rendezvous file says nothing about networks. The network of the default route is tried first.
// It is docker's, in which both hosts have the same address, so that each would reach itself on the
// one port that ranks listen on; or one that swallows packets.
TEST_F(TwoHosts, FindOutByWhichNetworkTheyReachEachOtherWhereNothingSaysSo) {
  for (const int host : {0, 1}) {
    for (const auto& [device, address] :
         {std::pair(std::string("docker0"), std::string("172.17.0.1/16")),
          {"management", fmt::format("10.66.0.{}/24", host + 1)}}) {
      run_on(host, {"ip", "link", "add", device, "type", "bridge"});
      run_on(host, {"ip", "addr", "add", address, "dev", device});
      run_on(host, {"ip", "link", "set", device, "up"});
    }
    run_on(host, {"ip", "neigh", "add", fmt::format("10.66.0.{}", 2 - host), "lladdr",
                  "02:00:00:00:00:99", "dev", "management", "nud", "permanent"});
  }
  const TemporaryFolder folder;
  for (const std::string device : {"docker0", "management"}) {
    for (const int host : {0, 1}) {
      run_on(host, {"ip", "route", "replace", "default", "dev", device});
    }
    for (const std::string transport : {"auto", "tcp"}) {
      SCOPED_TRACE(device + ", " + transport);
      std::vector<std::unique_ptr<testing::Process>> ranks;
      for (const int rank : {0, 1, 2, 3}) {
        ranks.push_back(std::make_unique<testing::Process>(
            hosts_.on(rank / 2) + Arguments{STRETTO_BIN_DIR "/join_rank_program"},
            Variables{{"STRETTO_RENDEZVOUS", "file://" + (folder / (device + transport))},
                      {"STRETTO_JOB_KEY", std::string(64, '7')},
                      {"STRETTO_PORTS", "29700"},
                      {"STRETTO_TRANSPORT", transport},
                      {"STRETTO_SIZE", "4"},
                      {"STRETTO_RANK", std::to_string(rank)}}));
      }
      for (auto& rank : ranks) {
        const Ended ended = testing::end_of(*rank);
        EXPECT_EQ(ended.status, 0) << ended.errors;
        expect_contains(ended.output, "sum 6\n");
      }
    }
  }
}

TEST_F(TwoHosts, AreToldWhatToDoWhereTheyDoNotReachEachOther) {
  const auto ended =
      meet({{"MASTER_ADDR", "10.77.0.1"}, {"STRETTO_NETWORK", "lo"}, {"TEST_JOIN_SECONDS", "2"}});
  for (const Ended& each : ended) {
    EXPECT_EQ(each.status, 1);
    // The text comes from the rank that was the first to give up.
    expect_contains(each.errors, ": joining rank ");
    expect_contains(each.errors, " pid ");
    expect_contains(each.errors, "127.0.0.1:");
    expect_contains(each.errors,
                    "; if that is not the network between the hosts, name it in STRETTO_NETWORK");
  }
}

TEST_F(TwoHosts, UseTwoNetworksAlsoBetweenASinglePairOfRanks) {
  run_on(0, {"ip", "link", "add", "eth1", "type", "veth", "peer", "name", "eth1", "netns",
             hosts_.on(1).back()});
  for (const int host : {0, 1}) {
    run_on(host, {"ip", "addr", "add", fmt::format("10.88.0.{}/24", host + 1), "dev", "eth1"});
    run_on(host, {"ip", "link", "set", "eth1", "up"});
  }
  const Arguments bench{testing::kToolPath, "bench", "all_reduce", "--bytes", "256K", "--no-pin"};
  const auto send_with = [&](const std::string& networks, const std::string& streams = "2",
                             int ranks = 1) {
    const std::array<long, 2> before{sent_bytes(0, "eth"), sent_bytes(0, "eth1")};
    run_on_both(bench, {{"STRETTO_NETWORK", networks}, {"STRETTO_STREAMS", streams}}, ranks);
    return std::array{sent_bytes(0, "eth") - before[0], sent_bytes(0, "eth1") - before[1]};
  };
  for (const auto& one : {send_with("eth"), send_with("eth,eth1", "1")}) {
    EXPECT_GT(one[0], 20 * one[1]);
  }
  // Where two ranks have one connection each, the second one begins with the second network.
  for (const auto& both : {send_with("10.77.0.0/24,10.88.0.0/24"), send_with("eth,eth1", "1", 2)}) {
    EXPECT_GT(3 * both[1], both[0]);
    EXPECT_GT(3 * both[0], both[1]);
  }
}

const Arguments kValues = {STRETTO_BIN_DIR "/values_rank_program"};

TEST_F(TwoHosts, GiveTheBitsOfOne) {
  const Ended first = run_on_both(kValues)[0];
  EXPECT_EQ(testing::occurrences(first.output, "right\n"), 2u) << first.output;
  EXPECT_EQ(testing::occurrences(first.errors, "different network namespaces"), 2u)
      << "each rank says so once\n"
      << first.errors;
}

// Uses two_level_mapped, as the next test does.
TEST_F(TwoHosts, GiveTheBitsOfOneByUcx) {
  if (!testing::has_ucx()) GTEST_SKIP() << "no UCX: CMake found none";
  const Variables variables{{"STRETTO_TRANSPORT", "ucx"},
                            {"STRETTO_LOG", "info"},
                            {"STRETTO_ALGORITHM", "two_level_mapped"},
                            {"UCX_TLS", "tcp"},
                            {"UCX_NET_DEVICES", "eth"}};
  const Ended first = run_on_both(kValues, variables)[0];
  EXPECT_EQ(testing::occurrences(first.output, "right\n"), 2u) << first.output;
  expect_contains(first.errors, "messages are moved by UCX");
}

// A stand-in for ssh starts mpirun's daemon on the other host, with an environment of its own.
TEST_F(TwoHosts, GiveTheBitsOfOneByOpenMpi) {
  testing::Process version({"mpirun", "--version"}, {});
  if (testing::end_of(version).output.find("(Open MPI) 4") == std::string::npos ||
      !std::filesystem::exists(STRETTO_BIN_DIR "/libstretto_mpi.so")) {
    GTEST_SKIP() << "no Open MPI 4";
  }
  const TemporaryFolder folder;
  const std::string agent = folder / "agent";
  // The host name differs, as mpirun takes daemons with the same host name for one.
  std::ofstream(agent) << "#!/bin/sh\nshift\nexec env -i PATH=\"$PATH\" ip netns exec "
                       << hosts_.on(1).back() << " unshare --uts sh -c \"hostname other; $*\"\n";
  std::filesystem::permissions(agent, std::filesystem::perms::owner_all);
  Variables variables = testing::mpirun_variables(folder);
  variables.insert({{"STRETTO_LOG", "info"},
                    {"STRETTO_ALGORITHM", "two_level_mapped"},
                    {"OMPI_MCA_plm_rsh_agent", agent},
                    {"OMPI_MCA_btl", "vader,tcp,self"},
                    {"OMPI_MCA_pml", "ob1"},
                    {"OMPI_MCA_btl_tcp_if_include", "10.77.0.0/24"},
                    {"OMPI_MCA_oob_tcp_if_include", "10.77.0.0/24"}});
  Tool job(
      Arguments{"run", "-n", "2", "--hosts", "10.77.0.1,10.77.0.2", "--transport", "mpi", "--"} +
          kValues,
      variables,
      hosts_.on(0) + Arguments{"unshare", "--uts", "sh", "-c", "hostname one; exec \"$@\"", "sh"});
  const Ended ended = testing::end_of(job);
  EXPECT_EQ(ended.status, 0) << ended.errors;
  EXPECT_EQ(testing::occurrences(ended.output, "right\n"), 4u) << ended.output;
  for (const int rank : {0, 3}) {
    expect_contains(ended.errors,
                    fmt::format("stretto [rank {}] info: messages are moved by", rank));
  }
}

}  // namespace
}  // namespace stretto
