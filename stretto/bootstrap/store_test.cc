// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What every store must do, on each of the three.

#include "stretto/bootstrap/store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "stretto/bootstrap/memory_store.h"
#include "stretto/bootstrap/store_server.h"
#include "stretto/bootstrap/tcp_store.h"
#include "stretto/bootstrap/torch_store.h"

namespace stretto::bootstrap {
namespace {

using std::chrono::milliseconds;

Deadline soon() { return Deadline::after(std::chrono::seconds(10)); }

void check_values(Store& one, Store& other) {
  const std::string every_byte = [] {
    std::string bytes;
    for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
    return bytes;
  }();
  ASSERT_TRUE(one.set("rank/0", every_byte, soon()).ok());
  EXPECT_EQ(other.get("rank/0", soon()).or_throw(), every_byte);
  ASSERT_TRUE(other.set("rank/0", "", soon()).ok());
  EXPECT_EQ(one.get("rank/0", soon()).or_throw(), "");
  const std::string longest(kMaxValueBytes, 'v');
  const std::string longest_key(kMaxKeyBytes, 'k');
  ASSERT_TRUE(one.set(longest_key, longest, soon()).ok());
  EXPECT_EQ(other.get(longest_key, soon()).or_throw(), longest);
}

void check_limits(Store& store) {
  const std::string long_key(kMaxKeyBytes + 1, 'k');
  const std::string long_value(kMaxValueBytes + 1, 'v');
  EXPECT_EQ(store.set(long_key, "", soon()).code(), StatusCode::invalid_argument);
  EXPECT_EQ(store.set("", "", soon()).code(), StatusCode::invalid_argument);
  EXPECT_EQ(store.set("key", long_value, soon()).code(), StatusCode::invalid_argument);
  EXPECT_EQ(store.get(long_key, soon()).status().code(), StatusCode::invalid_argument);
}

void check_waiting(Store& one, Store& other) {
  const TimePoint start = Clock::now();
  const auto nothing = one.get("nobody sets this", Deadline::after(milliseconds(30)));
  ASSERT_FALSE(nothing.ok());
  EXPECT_EQ(nothing.status().code(), StatusCode::timeout);
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "\"nobody sets this\"",
                      std::string(nothing.status().message()));
  EXPECT_LT(Clock::now() - start, milliseconds(1000));

  // A get that waits must not keep another thread from using the same store.
  std::thread waiter([&] {
    EXPECT_EQ(one.get("late", soon()).or_throw(), "here");
    EXPECT_EQ(one.get("later", Deadline()).or_throw(), "here, too");
  });
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_TRUE(one.set("late", "here", soon()).ok());
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_TRUE(other.set("later", "here, too", soon()).ok());
  waiter.join();
}

void check_contract(Store& one, Store& other) {
  check_values(one, other);
  check_limits(one);
  check_waiting(one, other);
}

// A TCPStore in a Python process, as torchrun's agent hosts one.
class TorchServer {
 public:
  explicit TorchServer(const std::string& python) {
    int ends[2];
    if (::pipe(ends) != 0) return;
    process_ = ::fork();
    if (process_ == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      ::execl(python.c_str(), python.c_str(), "-c", kProgram, nullptr);
      ::_exit(127);
    }
    ::close(ends[1]);
    FILE* lines = ::fdopen(ends[0], "r");
    if (std::fscanf(lines, "port %d", &port_) != 1) port_ = 0;
    (void)std::fclose(lines);
  }
  ~TorchServer() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  // 0 if it did not start: no torch there, say.
  int port() const { return port_; }

 private:
  static constexpr const char* kProgram =
      "import time\n"
      "from torch.distributed import TCPStore\n"
      "store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\n"
      "print('port', store.port, flush=True)\n"
      "time.sleep(60)\n";
  pid_t process_ = -1;
  int port_ = 0;
};

std::string torch_python() {
  if (const char* chosen = std::getenv("STRETTO_TORCH_PYTHON")) return chosen;
  const std::string usual = STRETTO_SOURCE_DIR "/build/venv/bin/python";
  return std::filesystem::exists(usual) ? usual : "";
}

TEST(Store, MemoryStoreKeepsTheContract) {
  MemoryStore store;
  check_contract(store, store);
}

TEST(Store, TcpStoreKeepsTheContract) {
  const JobKey key = JobKey::generate().or_throw();
  const auto server = StoreServer::start({.key = key}).or_throw();
  const TcpStoreOptions options{.host = "127.0.0.1", .port = server->port(), .key = key};
  const auto one = connect_tcp_store(options, soon()).or_throw();
  const auto other = connect_tcp_store(options, soon()).or_throw();
  EXPECT_EQ(one->describe(), "launcher at 127.0.0.1:" + std::to_string(server->port()));
  check_contract(*one, *other);
}

TEST(Store, TorchStoreKeepsTheContractWithARealServer) {
  const std::string python = torch_python();
  if (python.empty()) {
    GTEST_SKIP() << "no Python with torch: set STRETTO_TORCH_PYTHON to one, or run ./dev demo";
  }
  const TorchServer server(python);
  if (server.port() == 0) GTEST_SKIP() << python << " could not start a TCPStore";
  const TorchStoreOptions options{.host = "127.0.0.1", .port = server.port()};
  const auto one = connect_torch_store(options, soon()).or_throw();
  const auto other = connect_torch_store(options, soon()).or_throw();
  check_contract(*one, *other);

  TorchStoreOptions second_attempt = options;
  second_attempt.prefix = "stretto/run/1/";
  const auto later = connect_torch_store(second_attempt, soon()).or_throw();
  EXPECT_FALSE(later->get("rank/0", Deadline::after(milliseconds(20))).ok())
      << "a restarted job must not see the notes of its first attempt";
}

}  // namespace
}  // namespace stretto::bootstrap
