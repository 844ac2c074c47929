// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "stretto/bootstrap/store_server.h"
#include "tests/support/expect_contains.h"
#include "tests/support/fake_environment.h"
#include "tests/support/forbid.h"
#include "tests/support/free_port.h"
#include "tests/support/in_child.h"
#include "tools/commands.h"
#include "tools/doctor/check.h"

namespace stretto::tools {
namespace {

// Returns what the command prints with these variables. It must end with `expected_status`.
std::string doctor_says(const std::vector<std::string>& arguments, int expected_status,
                        const std::map<std::string, std::string>& variables = {}) {
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  ::testing::internal::CaptureStdout();
  const int status = doctor_command(arguments);
  std::fflush(stdout);
  std::string output = ::testing::internal::GetCapturedStdout();
  for (const auto& [name, value] : variables) ::unsetenv(name.c_str());
  EXPECT_EQ(status, expected_status) << output;
  return output;
}

TEST(Doctor, SaysInALineForEachCheckWhatItHasSeen) {
  const auto object = nlohmann::json::parse(doctor_says({"--json"}, 0));
  EXPECT_EQ(object["problems"], 0);
  std::size_t lines = 0;
  const std::string text = doctor_says({}, 0);
  for (const char letter : text) lines += letter == '\n' ? 1 : 0;
  EXPECT_EQ(lines, object["checks"].size());
  for (const auto& check : object["checks"]) {
    EXPECT_NE(check["seen"], "") << check;
    EXPECT_EQ(check["advice"] == "", check["state"] == "ok") << check;
    expect_contains(text, check["name"].get<std::string>());
  }
  for (const char* seen : {"by the affinity mask", "GiB left", "enough for", "seals it", "lo 127.0",
                           "to read", "KiB to receive", "plug-in mpi", "none is set"}) {
    expect_contains(text, seen);
  }
  expect_contains(text, fmt::format("for {} processors", ::sysconf(_SC_NPROCESSORS_ONLN)));
  EXPECT_EQ(doctor_command({"--help"}), 0);
  EXPECT_EQ(doctor_command({"--for"}), 2);
}

TEST(Doctor, NamesAMisspeltVariable) {
  const std::string text =
      doctor_says({}, 0, {{"STRETTO_NETWRK", "eth0"}, {"STRETTO_WINDOW_WIDTH", "3"}});
  expect_contains(text, "warning  names");
  expect_contains(text, "STRETTO_NETWRK (or STRETTO_NETWORK?)");
  expect_contains(text, "STRETTO_WINDOW_WIDTH");
  expect_lacks(text, "STRETTO_WINDOW_WIDTH (or");
}

TEST(Doctor, RefusesWhatRanksWouldRefuse) {
  for (const auto& [variables, sentence] :
       std::vector<std::pair<std::map<std::string, std::string>, std::string>>{
           {{{"STRETTO_STREAMS", "many"}}, "STRETTO_STREAMS=\"many\" is not a whole number"},
           {{{"STRETTO_VERIFY", "often"}}, "STRETTO_VERIFY=\"often\" is not one of automatic"},
           {{{"STRETTO_RENDEZVOUS", "node0"}}, "\"node0\" is no address"},
           {{{"STRETTO_RANK", "0"}, {"STRETTO_SIZE", "2"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}},
            "STRETTO_RANK says 0, but RANK says 1"}}) {
    const std::string text = doctor_says({}, 1, variables);
    expect_contains(text, "problem  values");
    expect_contains(text, sentence);
  }
}

TEST(Doctor, KnowsWhatRanksWouldWarnOf) {
  const std::string text = doctor_says({}, 0, {{"STRETTO_LOG", "loud"}});
  expect_contains(text, "warning  values");
  expect_contains(text, "STRETTO_LOG=loud is not one of debug, info, ");
}

TEST(Doctor, TriesWhatTheJobWants) {
  const FileDescriptor taken = bootstrap::listen_tcp("127.0.0.1", 0).or_throw();
  const std::string port = std::to_string(bootstrap::local_port(taken.get()).or_throw());
  const std::string text = doctor_says({}, 1,
                                       {{"STRETTO_NETWORK", "nothing0"},
                                        {"STRETTO_PORTS", port},
                                        {"STRETTO_CONGESTION_CONTROL", "none such"},
                                        {"STRETTO_BACKEND", "nccl"},
                                        {"STRETTO_NCCL_LIBRARY", "/nowhere/libnccl.so"}});
  for (const char* sentence :
       {"STRETTO_NETWORK: \"nothing0\" is no interface", "STRETTO_PORTS: binding",
        "STRETTO_CONGESTION_CONTROL=none such: ", "problem  NCCL", "/nowhere/libnccl.so"}) {
    expect_contains(text, sentence);
  }
  const std::string by_name = doctor_says({}, 0, {{"STRETTO_NETWORK", "lo"}});
  expect_contains(by_name, "127.0.0.1 (lo) from STRETTO_NETWORK");
  const std::string by_route = doctor_says({}, 0, {{"STRETTO_RENDEZVOUS", "tcp://127.0.0.1:1"}});
  expect_contains(by_route, "127.0.0.1 (lo): from it leads the route to the store on 127.0.0.1");
  expect_contains(doctor_says({}, 0, {{"GLOO_SOCKET_IFNAME", "eth9"}}),
                  "GLOO_SOCKET_IFNAME=eth9 is not read");
}

TEST(Doctor, TriesTheFileOfAPlugInForThatOneOnly) {
  const auto object = nlohmann::json::parse(doctor_says({"--json"}, 1,
                                                        {{"STRETTO_TRANSPORT", "ucx"},
                                                         {"STRETTO_BACKEND", "mpi"},
                                                         {"STRETTO_PLUGIN", "/nowhere/ucx.so"}}));
  std::map<std::string, std::string> seen;
  for (const auto& check : object["checks"]) seen[check["name"]] = check["seen"];
  expect_contains(seen.at("plug-in ucx"), "/nowhere/ucx.so");
  expect_lacks(seen.at("plug-in mpi"), "/nowhere/ucx.so");
}

TEST(Doctor, FindsWhatAContainerForbids) {
  const int found = testing::exit_code_in_child([] {
    testing::forbid({SYS_memfd_create, SYS_process_vm_readv}, EPERM);
    int right = 0;
    for (const doctor::Check& check : doctor::check_host(FakeEnvironment({}))) {
      const bool is_memory = check.name == "shared memory" && check.state == doctor::State::problem;
      const bool is_copy = check.name == "single copy" && check.state == doctor::State::warning &&
                           check.seen.find("Operation not permitted") != std::string::npos;
      right += is_memory || is_copy ? 1 : 0;
    }
    return right;
  });
  EXPECT_EQ(found, 2);
}

TEST(Doctor, ComparesTheLimitOnDescriptorsWithWhatTheJobTakes) {
  const auto state = [](const std::string& size, const std::string& streams) {
    return testing::exit_code_in_child([&] {
      const rlimit limit{256, 256};
      ::setrlimit(RLIMIT_NOFILE, &limit);
      const FakeEnvironment environment({{"STRETTO_RANK", "0"},
                                         {"STRETTO_SIZE", size},
                                         {"STRETTO_RENDEZVOUS", "tcp://127.0.0.1:1"},
                                         {"STRETTO_STREAMS", streams}});
      for (const doctor::Check& check : doctor::check_host(environment)) {
        if (check.name == "descriptors") return static_cast<int>(check.state);
      }
      return -1;
    });
  };
  // Each rank takes three descriptors, or four with two streams.
  EXPECT_EQ(state("80", "1"), static_cast<int>(doctor::State::warning));
  EXPECT_EQ(state("80", "2"), static_cast<int>(doctor::State::problem));
  EXPECT_EQ(state("90", "1"), static_cast<int>(doctor::State::problem));
}

std::vector<std::string> to(int port) { return {"--to", fmt::format("127.0.0.1:{}", port)}; }

TEST(DoctorTo, SaysWhatARefusalMeans) {
  const std::string text = doctor_says(to(free_port()), 1);
  expect_contains(text, "from 127.0.0.1 (lo) to 127.0.0.1\n");
  expect_contains(text, "problem  connection");
  expect_contains(text, "Connection refused");
  expect_contains(text, "nobody listens there");
  expect_contains(doctor_says({"--to", "no.such.host.invalid:1"}, 1), "does not know that name");
  EXPECT_EQ(doctor_command({"--to", "node0"}), 2);
}

TEST(DoctorTo, SaysWhenNobodyOfOursListens) {
  const FileDescriptor silent = bootstrap::listen_tcp("127.0.0.1", 0).or_throw();
  const std::string text = doctor_says(to(bootstrap::local_port(silent.get()).or_throw()), 0);
  expect_contains(text, ": connected in ");
  expect_contains(text, "warning  server");
  expect_contains(text, "neither a store of stretto's nor one of PyTorch's");
}

TEST(DoctorTo, KnowsAStoreAndWhetherItTakesTheKey) {
  const auto key = bootstrap::JobKey::generate().or_throw();
  const auto server = bootstrap::StoreServer::start({.key = key}).or_throw();
  const auto place = to(server->port());
  ::testing::internal::CaptureStderr();  // The server says whom it refuses.
  const std::string seen = fmt::format("the launcher of stretto {}, protocol {}", bootstrap::kBuild,
                                       bootstrap::kProtocolVersion);
  expect_contains(doctor_says(place, 0), seen + ", which wants the key in STRETTO_JOB_KEY");
  expect_contains(doctor_says(place, 0, {{"STRETTO_JOB_KEY", key.hexadecimal()}}),
                  seen + ", which takes this job's key");
  expect_contains(doctor_says(place, 1, {{"STRETTO_JOB_KEY", std::string(64, '1')}}),
                  "refuses the job key");
  expect_contains(doctor_says(place, 1, {{"STRETTO_JOB_KEY", "1"}}), "problem  server");
  const auto open = bootstrap::StoreServer::start({}).or_throw();
  expect_contains(doctor_says(to(open->port()), 0), "which takes who has no key");
  (void)::testing::internal::GetCapturedStderr();
}

}  // namespace
}  // namespace stretto::tools
