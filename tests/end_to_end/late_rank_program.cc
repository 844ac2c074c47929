// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A rank of a job in which rank 1 comes to every operation 50 ms late, after work of its own.
// Prints "ready PID" and goes on until it is killed.

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "stretto/stretto.h"
#include "tests/end_to_end/rank_program.h"

int main() {
  return stretto::testing::run_or_explain([] {
    const auto comm = stretto::join();
    std::vector<float> data(1000);
    std::printf("ready %d\n", ::getpid());
    std::fflush(stdout);
    comm->note("loading data");
    while (true) {
      if (comm->rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      comm->all_reduce(std::span(data)).wait();
    }
  });
}
