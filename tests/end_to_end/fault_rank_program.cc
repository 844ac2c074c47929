// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A rank of a job that a test will harm:
//   fault_rank_program MODE [elements [seconds that an operation may take [END]]]
// MODE: private or registered buffers, barrier, or idle: five seconds pass between barriers. Prints
// "ready PID" after a few operations, goes on until one fails, and then prints "failed TYPE: text"
// and ends with status 3. With END, rank 1 ends ten operations later: with that exit code, or by a
// crash if it is "SEGV".

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "stretto/stretto.h"
#include "tests/end_to_end/rank_program.h"

namespace {

void end(const std::string& how) {
  if (how == "SEGV") ::raise(SIGSEGV);
  ::_exit(std::stoi(how));
}

void work(const std::string& mode, std::size_t count, stretto::Duration timeout,
          const std::string& how_to_end) {
  auto comm = stretto::join({.join_timeout = std::chrono::seconds(20), .timeout = timeout});
  auto registered = comm->allocate<float>(mode == "registered" ? count : 1);
  std::vector<float> own(mode == "private" ? count : 1);
  for (int step = 0;; ++step) {
    if (mode == "registered") {
      comm->all_reduce(registered, {.op = stretto::ReduceOp::mean}).wait();
    } else if (mode == "private") {
      comm->all_reduce(std::span(own), {.op = stretto::ReduceOp::mean}).wait();
    } else {
      comm->barrier().wait();
    }
    if (step == 10) std::printf("ready %d\n", ::getpid());
    std::fflush(stdout);
    if (step == 20 && comm->rank() == 1 && !how_to_end.empty()) end(how_to_end);
    if (mode == "idle" && step >= 10) std::this_thread::sleep_for(std::chrono::seconds(5));
  }
}

}  // namespace

int main(int argument_count, char** arguments) {
  const std::string mode = argument_count > 1 ? arguments[1] : "private";
  const std::size_t count = argument_count > 2 ? std::stoul(arguments[2]) : 1000;
  try {
    work(mode, count, std::chrono::seconds(argument_count > 3 ? std::stoi(arguments[3]) : 600),
         argument_count > 4 ? arguments[4] : "");
  } catch (const stretto::Error& error) {
    std::printf("failed %s: %s\n", stretto::testing::type_of(error), error.what());
  }
  return 3;
}
