// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What happens to a job when the network between its hosts, or one of the hosts, is gone; and when
// it only seems to be gone.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/rank_vector.h"
#include "stretto/bootstrap/socket.h"
#include "tests/end_to_end/hosts.h"
#include "tests/support/expect_contains.h"
#include "tests/support/soon.h"

namespace stretto {
namespace {

using std::chrono::milliseconds;
using testing::Arguments;
using testing::Hosts;
using testing::Process;
using testing::Variables;

// Long enough for a machine that is busy with other tests, and far below every other timeout.
constexpr Duration kNoticed = std::chrono::seconds(15);
const Variables kTwoSeconds = {{"STRETTO_NETWORK_TIMEOUT", "2"}};

// The first line of a rank other than "ready".
std::string result_of(const std::string& output) {
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("ready")) return line;
  }
  return {};
}

// Runs the ranks of a job, each on its host of `placement`.
class Network : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Hosts(1).made()) GTEST_SKIP() << "cannot make network namespaces (needs root, iproute2)";
  }
  // Exceptions are used because they also end a test from inside a function.
  void make(int hosts) {
    hosts_.emplace(hosts);
    if (!hosts_->made()) throw std::runtime_error("cannot make network namespaces");
  }
  void start(int hosts, const std::vector<int>& placement, const Arguments& program,
             const Variables& variables) {
    make(hosts);
    start_ranks(placement, program, variables);
  }
  void start_ranks(const std::vector<int>& placement, const Arguments& program,
                   const Variables& variables) {
    for (const int host : placement) launch(host, placement.size(), program, variables);
    for (auto& each : ranks_) {
      if (!each->output().wait_for("ready ")) throw std::runtime_error(each->errors().so_far());
    }
  }
  // Starts the next rank; the first one is on host 0.
  void launch(int host, std::size_t size, const Arguments& program, Variables variables) {
    variables.insert({{"RANK", std::to_string(ranks_.size())},
                      {"WORLD_SIZE", std::to_string(size)},
                      {"MASTER_ADDR", address_.value_or(Hosts::address(0))},
                      {"MASTER_PORT", "29500"},
                      {"STRETTO_LINK_CACHE", "off"}});
    ranks_.push_back(std::make_unique<Process>(hosts_->on(host) +
                                                   Arguments{STRETTO_BIN_DIR "/" + program[0]} +
                                                   Arguments(program.begin() + 1, program.end()),
                                               variables));
  }
  Process& rank(int number) { return *ranks_[number]; }

  // Soon the rank must say that it has lost one of `lost`, and why. If it has not noticed that by
  // itself, its message holds another rank's words.
  void expect_lost(int number, const std::vector<int>& lost) {
    std::string result;
    const auto has_said = [&] {
      result = result_of(rank(number).output().so_far());
      return !result.empty();
    };
    (void)comes_true(has_said, Deadline::after(kNoticed));
    EXPECT_TRUE(result.starts_with("failed PeerLost: ")) << "rank " << number << ": " << result;
    expect_contains(result, "the network to it, or its host");
    EXPECT_TRUE(std::ranges::any_of(lost,
                                    [&](int other) {
                                      return result.find(fmt::format("lost rank {} (tcp, ",
                                                                     other)) != std::string::npos;
                                    }))
        << "rank " << number << ": " << result;
  }
  void expect_no_end() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      EXPECT_EQ(result_of(ranks_[r]->output().so_far()), "") << "rank " << r;
      EXPECT_TRUE(testing::runs(ranks_[r]->pid())) << "rank " << r;
    }
  }
  // Ends the ranks of pause_rank_program; returns the longest round of any rank.
  milliseconds longest_round() {
    ::kill(rank(0).pid(), SIGUSR1);
    long longest = 0;
    for (auto& each : ranks_) {
      EXPECT_EQ(each->status(), 0) << each->errors().finish();
      const std::string result = result_of(each->output().finish());
      EXPECT_TRUE(result.starts_with("right ")) << result;
      if (result.starts_with("right ")) longest = std::max(longest, std::stol(result.substr(6)));
    }
    return milliseconds(longest);
  }

  std::optional<Hosts> hosts_;
  std::optional<std::string> address_;  // Rank 0's, if the switch is not used.
  RankVector<std::unique_ptr<Process>> ranks_;
};

// Whether the kernel holds bytes that a rank has written and its peer has not taken.
bool has_unsent(pid_t pid) {
  std::ifstream table(fmt::format("/proc/{}/net/tcp", pid));
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string number, local, remote, state, queues;
    words >> number >> local >> remote >> state >> queues;
    if (std::stoul(queues.substr(0, queues.find(':')), nullptr, 16) > 0) return true;
  }
  return false;
}

TEST_F(Network, AHostThatVanishesIsNoticedByAllOthers) {
  start(3, {0, 1, 2}, {"fault_rank_program", "private", "1000"}, kTwoSeconds);
  ASSERT_TRUE(hosts_->silence(2));
  expect_lost(0, {2});
  expect_lost(1, {2});
  expect_lost(2, {0, 1});
}

TEST_F(Network, ACableThatIsPulledIsNoticedWithLargeMessagesUnderWay) {
  start(3, {0, 1, 2}, {"fault_rank_program", "private", "2000000"}, kTwoSeconds);
  ASSERT_TRUE(hosts_->unplug(2));
  expect_lost(0, {2});
  expect_lost(1, {2});
  expect_lost(2, {0, 1});
}

// A rank that leaves because it was told is not held up either, though a host never takes its
// messages.
TEST_F(Network, AHostThatVanishesHoldsNobodyUpOverUcx) {
  if (!testing::has_ucx()) GTEST_SKIP() << "no UCX: CMake found none";
  make(2);
  Variables variables{{"STRETTO_TRANSPORT", "ucx"},
                      {"STRETTO_ALGORITHM", "direct"},  // All ranks send to all.
                      {"UCX_TLS", "tcp"},
                      {"UCX_NET_DEVICES", "eth"}};
  for (const auto& [host, limit] : {std::pair(0, "2"), std::pair(0, "4"), std::pair(1, "2")}) {
    variables["STRETTO_NETWORK_TIMEOUT"] = limit;
    launch(host, 3, {"fault_rank_program", "private", "1000000"}, variables);
  }
  for (auto& each : ranks_) ASSERT_TRUE(each->output().wait_for("ready "));
  const TimePoint begin = Clock::now();
  ASSERT_TRUE(hosts_->silence(1));
  expect_lost(0, {2});
  expect_lost(1, {2});
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(8));
}

// The last messages of another host's process may still be on their way when it has ended.
TEST_F(Network, ProcessesOfAnotherHostAreNotWatched) {
  start(2, {0, 0, 1, 1}, {"fault_rank_program", "idle"}, {});
  int watched = 0;
  const std::string folder = fmt::format("/proc/{}/fd", rank(0).pid());
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry, gone) == "anon_inode:[pidfd]") ++watched;
  }
  EXPECT_EQ(watched, 1) << "rank 1 is on the same host";
}

// Copies of a process's TCP connections over IPv4.
std::vector<FileDescriptor> connections_of(pid_t pid) {
  std::vector<FileDescriptor> connections;
  const FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  for (int number = 0; number < 256; ++number) {
    FileDescriptor copy(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), number, 0)));
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    auto* const address = reinterpret_cast<sockaddr*>(&peer);
    if (!copy.valid() || ::getpeername(copy.get(), address, &length) != 0) continue;
    if (peer.ss_family == AF_INET) connections.push_back(std::move(copy));
  }
  return connections;
}

// All connections use the one port of STRETTO_PORTS, as if a firewall let only that through.
TEST_F(Network, ConnectionsAreAsTheVariablesSay) {
  start(2, {0, 0, 1, 1}, {"fault_rank_program", "idle"},
        {{"STRETTO_PORTS", "29701"}, {"STRETTO_CONGESTION_CONTROL", "reno"}});
  int listening = 0;
  for (const int number : {0, 2}) {
    const auto connections = connections_of(rank(number).pid());
    EXPECT_EQ(connections.size(), 2u) << "to each rank of the other host";
    for (const FileDescriptor& connection : connections) {
      if (bootstrap::local_port(connection.get()).or_throw() == 29701) ++listening;
      std::array<char, 16> control{};
      socklen_t length = sizeof(control);
      ::getsockopt(connection.get(), IPPROTO_TCP, TCP_CONGESTION, control.data(), &length);
      EXPECT_STREQ(control.data(), "reno");
    }
  }
  EXPECT_EQ(listening, 2) << "of each connection one end";
}

TEST_F(Network, ItIsNoticedWhileTheProgramComputes) {
  start(2, {0, 1}, {"fault_rank_program", "idle"}, kTwoSeconds);
  ASSERT_TRUE(hosts_->silence(1));
  // The pause is longer than noticing may take: so the operation after it fails, and at once.
  expect_lost(0, {1});
  expect_lost(1, {0});
}

// The sender of lost packets has the shorter limit: otherwise it would mostly hear that it was
// given up.
TEST_F(Network, PacketsThatAreLostOneWayAreNoticedByBothEnds) {
  for (const char* mode : {"private", "idle"}) {
    for (const int from : {0, 1}) {
      SCOPED_TRACE(fmt::format("{}, from {}", mode, from));
      ranks_.clear();
      make(2);
      for (const int number : {0, 1}) {
        launch(number, 2, {"fault_rank_program", mode},
               {{"STRETTO_NETWORK_TIMEOUT", number == from ? "2" : "5"}});
      }
      for (auto& each : ranks_) ASSERT_TRUE(each->output().wait_for("ready "));
      ASSERT_TRUE(hosts_->drop(from, 1 - from));
      expect_lost(0, {1});
      expect_lost(1, {0});
      expect_contains(result_of(rank(from).output().so_far()), ", though it is still heard");
    }
  }
}

TEST_F(Network, TheHalvesOfAPartitionNameEachOther) {
  start(2, {0, 0, 1, 1}, {"fault_rank_program", "private"}, kTwoSeconds);
  ASSERT_TRUE(hosts_->silence(1));
  expect_lost(0, {2, 3});
  expect_lost(1, {2, 3});
  expect_lost(2, {0, 1});
  expect_lost(3, {0, 1});
}

TEST_F(Network, AnOutageOfSixSecondsHealsUnseen) {
  start(2, {0, 1}, {"pause_rank_program"}, {});
  ASSERT_TRUE(hosts_->silence(1));
  std::this_thread::sleep_for(std::chrono::seconds(6));
  ASSERT_TRUE(hosts_->heal(1));
  std::this_thread::sleep_for(std::chrono::seconds(4));
  expect_no_end();
  EXPECT_GT(longest_round(), milliseconds(5500));
}

TEST_F(Network, TenSecondsAreTheLimitUnlessSomebodySaysOtherwise) {
  make(2);
  launch(0, 2, {"fault_rank_program", "private"}, {});
  launch(1, 2, {"fault_rank_program", "private"}, {{"STRETTO_NETWORK_TIMEOUT", "0"}});
  for (auto& each : ranks_) ASSERT_TRUE(each->output().wait_for("ready "));
  const TimePoint begin = Clock::now();
  ASSERT_TRUE(hosts_->silence(1));
  expect_lost(0, {1});
  EXPECT_GT(Clock::now() - begin, std::chrono::seconds(8));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(12));
  std::this_thread::sleep_for(std::chrono::seconds(2));
  EXPECT_EQ(result_of(rank(1).output().so_far()), "") << "it was to wait on";
  EXPECT_TRUE(testing::runs(rank(1).pid()));
}

// A rank that gives another up resets their connection; otherwise the other would wait for it.
TEST_F(Network, WhoIsGivenUpHearsOfItWhenTheNetworkIsBack) {
  make(2);
  launch(0, 2, {"fault_rank_program", "idle"}, kTwoSeconds);
  launch(1, 2, {"fault_rank_program", "idle"}, {{"STRETTO_NETWORK_TIMEOUT", "0"}});
  for (auto& each : ranks_) ASSERT_TRUE(each->output().wait_for("ready "));
  ASSERT_TRUE(hosts_->silence(1));
  std::this_thread::sleep_for(std::chrono::seconds(3));
  ASSERT_TRUE(hosts_->heal(1));
  expect_lost(0, {1});
  EXPECT_TRUE(rank(1).output().wait_for("lost rank 0 (tcp, ")) << rank(1).output().so_far();
}

// The host is like a paused virtual machine: neither its programs nor its kernel answer. Others
// cannot tell it from a host that has vanished, but its own rank can.
TEST_F(Network, AHostThatWasPausedSaysSoWhenItGoesOn) {
  for (const char* mode : {"barrier", "private", "idle"}) {
    SCOPED_TRACE(mode);
    ranks_.clear();
    start(2, {0, 1}, {"fault_rank_program", mode}, kTwoSeconds);
    ASSERT_TRUE(hosts_->silence(1));
    ::kill(rank(1).pid(), SIGSTOP);
    expect_lost(0, {1});
    std::this_thread::sleep_for(std::chrono::seconds(1));
    ASSERT_TRUE(hosts_->heal(1));
    ::kill(rank(1).pid(), SIGCONT);
    EXPECT_TRUE(rank(1).output().wait_for("this rank itself has stood still for "))
        << rank(1).output().so_far();
  }
}

TEST_F(Network, AStoreWhoseHostVanishesIsNoticedWhileJoining) {
  make(2);
  // Rank 2 never comes.
  launch(0, 3, {"join_rank_program"}, {});
  launch(1, 3, {"join_rank_program"}, {});
  std::this_thread::sleep_for(std::chrono::seconds(2));
  ASSERT_TRUE(hosts_->silence(1));
  ASSERT_TRUE(comes_true([&] { return !testing::runs(rank(1).pid()); }, Deadline::after(kNoticed)));
  const std::string text = rank(1).output().finish() + rank(1).errors().finish();
  expect_contains(text, "the network to it, or its host");
}

TEST_F(Network, ALongCableThatLosesPacketsIsNotTakenForDead) {
  make(2);
  Process cable({STRETTO_BIN_DIR "/lossy_cable_program", hosts_->on(0).back(), hosts_->on(1).back(),
                 "20", "10"},
                {});
  ASSERT_TRUE(cable.output().wait_for("up")) << cable.output().so_far();
  address_ = "10.78.0.1";
  start_ranks({0, 1}, {"pause_rank_program"}, kTwoSeconds);
  std::this_thread::sleep_for(std::chrono::seconds(8));
  expect_no_end();
  longest_round();
}

// Stops rank 1 while rank 0 floods it. The stop must not come between two floods, nor so near the
// end of one that rank 1's kernel has room for the rest.
void stop_in_flood(pid_t sender, pid_t receiver) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    ::kill(receiver, SIGSTOP);
    bool floods = true;
    for (int look = 0; floods && look < 5; ++look) {
      std::this_thread::sleep_for(milliseconds(300));
      floods = has_unsent(sender);
    }
    if (floods) return;
    ::kill(receiver, SIGCONT);
    std::this_thread::sleep_for(milliseconds(50));
  }
  FAIL() << "rank 0 has never been found sending";
}

// Its kernel acknowledges what comes, and later says that there is no more room.
TEST_F(Network, ARankThatIsStoppedForLongerThanTheLimitIsNotLost) {
  start(2, {0, 1}, {"pause_rank_program", "flood"}, kTwoSeconds);
  stop_in_flood(rank(0).pid(), rank(1).pid());
  std::this_thread::sleep_for(std::chrono::seconds(7));
  expect_no_end();
  EXPECT_TRUE(has_unsent(rank(0).pid()));
  ::kill(rank(1).pid(), SIGCONT);
  EXPECT_GT(longest_round(), milliseconds(6000));
}

TEST_F(Network, TheHostOfAStoppedRankMayStillBeLost) {
  start(2, {0, 1}, {"pause_rank_program", "flood"}, kTwoSeconds);
  stop_in_flood(rank(0).pid(), rank(1).pid());
  std::this_thread::sleep_for(std::chrono::seconds(3));
  expect_no_end();
  ASSERT_TRUE(hosts_->silence(1));
  EXPECT_TRUE(rank(0).output().wait_for("lost rank 1 (tcp, ")) << rank(0).output().so_far();
}

}  // namespace
}  // namespace stretto
