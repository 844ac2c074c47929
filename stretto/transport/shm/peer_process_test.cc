// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/shm/peer_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>
#include <vector>

#include "stretto/base/file_descriptor.h"

namespace stretto::transport::shm {
namespace {

constexpr std::size_t kBytes = 3 * 1024 * 1024 + 5;

std::uint64_t address_of(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

// A process with a copy of this one's memory, and a socket to it.
class Child {
 public:
  Child() {
    const FileDescriptor listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un name{.sun_family = AF_UNIX, .sun_path = {}};
    socklen_t size = sizeof(sa_family_t);  // The kernel chooses the rest.
    auto* const address = reinterpret_cast<sockaddr*>(&name);
    EXPECT_EQ(::bind(listener.get(), address, size), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    size = sizeof(name);
    EXPECT_EQ(::getsockname(listener.get(), address, &size), 0);
    process_ = ::fork();
    if (process_ == 0) {
      const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
      if (::connect(socket, address, size) != 0) ::_exit(1);
      while (true) ::pause();
    }
    socket_ = FileDescriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(socket_.valid());
  }
  ~Child() { kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  PeerProcess process() const { return {ProcessHandle::of_socket(socket_.get()).or_throw(), 3}; }
  void stop() { ::kill(process_, SIGSTOP); }
  void kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = 0;
  }

 private:
  FileDescriptor socket_;
  pid_t process_ = 0;
};

class PeerProcessTest : public ::testing::Test {
 protected:
  // Both processes have this at the same address, because it is made before the child.
  std::vector<std::byte> shared_ = std::vector<std::byte>(kBytes, std::byte{1});
  std::uint32_t proof_ = 0xabcd1234;
  Child child_;

  void SetUp() override {
    ASSERT_TRUE(child_.process().valid());
    const Status reached = child_.process().prove(address_of(&proof_), proof_);
    if (reached.code() == StatusCode::system) {
      GTEST_SKIP() << "the system does not let processes reach each other's memory: "
                   << reached.message();
    }
    ASSERT_TRUE(reached.ok()) << reached.message();
  }
};

TEST_F(PeerProcessTest, ReadsWhatIsThereAndNotHere) {
  std::fill(shared_.begin(), shared_.end(), std::byte{2});
  std::vector<std::byte> theirs(kBytes);
  ASSERT_TRUE(child_.process().get(address_of(shared_.data()), theirs).ok());
  EXPECT_EQ(theirs, std::vector<std::byte>(kBytes, std::byte{1}));
}

TEST_F(PeerProcessTest, WritesThereAndNotHere) {
  const std::vector<std::byte> sent(kBytes - 1, std::byte{7});
  child_.stop();  // As if debugged: the child need not run for a copy.
  ASSERT_TRUE(child_.process().put(sent, address_of(shared_.data())).ok());
  EXPECT_EQ(shared_, std::vector<std::byte>(kBytes, std::byte{1}));
  std::vector<std::byte> theirs(kBytes);
  ASSERT_TRUE(child_.process().get(address_of(shared_.data()), theirs).ok());
  EXPECT_EQ(theirs[0], std::byte{7});
  EXPECT_EQ(theirs[kBytes - 2], std::byte{7});
  EXPECT_EQ(theirs[kBytes - 1], std::byte{1});
}

TEST_F(PeerProcessTest, NothingIsCopiedWithoutAnAddress) {
  EXPECT_TRUE(child_.process().get(0, {}).ok());
  EXPECT_TRUE(child_.process().put({}, 0).ok());
}

TEST_F(PeerProcessTest, WhatIsNotThereIsNamed) {
  std::vector<std::byte> bytes(100);
  const Status status = child_.process().get(8, bytes);
  EXPECT_EQ(status.code(), StatusCode::system);
  EXPECT_EQ(status.rank(), Rank(3));
  EXPECT_EQ(status.message(),
            "reading 100 bytes of private memory of rank 3: Bad address. A buffer must stay where "
            "it is until its operation has ended, and have the length that was said: one of rank "
            "3, or the one here, has not");
  EXPECT_EQ(child_.process().put(bytes, 8).code(), StatusCode::system);
}

// The kernel copies what it can, and returns how many bytes it has copied.
TEST_F(PeerProcessTest, ARangeThatEndsTooEarlyIsAFailure) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const pages =
      ::mmap(nullptr, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  ::munmap(static_cast<std::byte*>(pages) + 3 * page, page);
  const Child child;
  std::vector<std::byte> bytes(4 * page);
  EXPECT_TRUE(child.process().get(address_of(pages), ByteSpan(bytes).first(3 * page)).ok());
  EXPECT_EQ(child.process().get(address_of(pages), bytes).code(), StatusCode::system);
  ::munmap(pages, 3 * page);
}

TEST_F(PeerProcessTest, OneThatHasEndedIsLost) {
  const PeerProcess process = child_.process();
  child_.kill();
  std::vector<std::byte> bytes(100);
  for (const Status& status : {process.get(address_of(shared_.data()), bytes),
                               process.put(bytes, address_of(shared_.data()))}) {
    EXPECT_EQ(status.code(), StatusCode::peer_lost);
    EXPECT_EQ(status.rank(), Rank(3));
  }
}

volatile std::sig_atomic_t signals_seen = 0;

// A profiler may send signals while the kernel is asked whether the process is there.
TEST_F(PeerProcessTest, SignalsThatThisOneGetsDoNotEndIt) {
  struct sigaction counting {};
  counting.sa_handler = [](int) { signals_seen = signals_seen + 1; };
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGUSR1, &counting, &before), 0);
  std::atomic<bool> is_over = false;
  std::thread signals([&is_over, self = ::pthread_self()] {
    while (!is_over.load()) ::pthread_kill(self, SIGUSR1);
  });
  const ProcessHandle handle = child_.process().handle();
  int ends = 0;
  while (signals_seen < 3'000) ends += handle.has_ended() ? 1 : 0;
  is_over.store(true);
  signals.join();
  ::sigaction(SIGUSR1, &before, nullptr);
  EXPECT_EQ(ends, 0);
}

TEST_F(PeerProcessTest, AnotherProcessIsNotTakenForIt) {
  EXPECT_EQ(child_.process().prove(address_of(&proof_), proof_ + 1).code(), StatusCode::protocol);
  EXPECT_EQ(child_.process().prove(8, 0).code(), StatusCode::system);
  EXPECT_EQ(PeerProcess().prove(address_of(&proof_), proof_).code(), StatusCode::system);
}

}  // namespace
}  // namespace stretto::transport::shm
