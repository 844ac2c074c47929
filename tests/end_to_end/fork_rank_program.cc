// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A job whose ranks fork:
//   fork_rank_program works    Each has a child that sleeps; goes on until an operation fails.
//   fork_rank_program leaves   The last has such a child, and leaves while the others wait for it.
//   fork_rank_program misuses  Each has a child that uses the communicator, and destroys it.
// With "works" it prints "ready PID" when the children are there. In the end it prints "right", or
// "failed" and why.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "stretto/stretto.h"

namespace {

using namespace std::chrono_literals;

std::unique_ptr<stretto::Communicator> join() {
  return stretto::join({.join_timeout = 20s, .timeout = 50s});
}

void print(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// Forks a copy of the rank with all that it has but its output: tests wait until that is closed.
pid_t fork_sleeper() {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::close(STDOUT_FILENO);
  ::close(STDERR_FILENO);
  std::this_thread::sleep_for(30s);
  ::_exit(0);
}

void work() {
  const auto comm = join();
  (void)fork_sleeper();
  comm->barrier().wait();
  print("ready " + std::to_string(::getpid()));
  while (true) comm->barrier().wait();
}

void leave() {
  auto comm = join();
  comm->barrier().wait();
  if (comm->rank() < comm->size() - 1) return comm->barrier().wait();
  const pid_t child = fork_sleeper();
  comm.reset();
  print("right");
  // The others must be told although neither this process nor its child ends.
  std::this_thread::sleep_for(5s);
  ::kill(child, SIGKILL);
}

void misuse() {
  const auto comm = join();
  const stretto::Rank other = comm->rank() == 0 ? 1 : 0;
  float sum[1] = {1.0f};
  float messages[4] = {};
  comm->all_reduce(std::span<float>(sum)).wait();
  std::vector<stretto::Work> received;
  for (int tag = 0; tag < 4; ++tag) {
    received.push_back(comm->recv(std::span(messages + tag, 1), {.from = other, .tag = tag}));
    if (tag > 0) received.back() = std::move(received.back()).then([] {});
  }
  const pid_t child = ::fork();
  try {
    comm->all_reduce(std::span<float>(sum)).wait();
    if (child == 0) ::_exit(1);
  } catch (const stretto::Error& error) {
    if (child != 0) throw;
    print(std::string("child: ") + error.what());
    if (received[1].wait_status().code() != stretto::StatusCode::invalid_argument) ::_exit(1);
    try {
      const stretto::Work abandoned = std::move(received[2]);
      throw 1;
    } catch (int) {
    }
    return;  // Destroys the child's copies of all objects.
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  for (int i = 0; i < 100; ++i) comm->all_reduce(std::span<float>(sum)).wait();
  for (int tag = 0; tag < 4; ++tag) {
    comm->send(std::span<float>(sum), {.to = other, .tag = tag}).wait();
  }
  print(status == 0 ? "right" : "wrong");
}

}  // namespace

int main(int argument_count, char** arguments) {
  const std::string mode = argument_count > 1 ? arguments[1] : "";
  try {
    mode == "works" ? work() : mode == "leaves" ? leave() : misuse();
  } catch (const stretto::Error& error) {
    print(std::string("failed ") + error.what());
  }
  return 0;
}
