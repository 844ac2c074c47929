// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A rank of ./dev bench hosts --training: the steps have a backward pass that only burns time, and
// a Reducer sums their gradients. Arguments: steps, bytes of gradients, bytes of a bucket,
// milliseconds of a backward pass. Prints a line of JSON with three numbers for each step: the
// seconds from the launch of its first bucket to the end of its last one, and the bytes that this
// host's "eth" has sent and received in it.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "stretto/reducer/reducer.h"
#include "stretto/stretto.h"

namespace {

constexpr std::size_t kGradients = 64;
constexpr int kWarmUpSteps = 2;

long counter(const std::string& name) {
  std::ifstream file("/sys/class/net/eth/statistics/" + name);
  long bytes = 0;
  file >> bytes;
  return bytes;
}

void burn(stretto::Duration time) {
  const stretto::TimePoint end = stretto::Clock::now() + time;
  while (stretto::Clock::now() < end) {
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  try {
    const auto communicator = stretto::join();
    const int steps = std::atoi(argv[1]);
    const std::size_t bytes = std::strtoul(argv[2], nullptr, 10) / kGradients;
    const std::size_t bucket_bytes = std::strtoul(argv[3], nullptr, 10);
    const auto of_gradient = std::chrono::duration_cast<stretto::Duration>(
        std::chrono::duration<double, std::milli>(std::strtod(argv[4], nullptr)) / kGradients);
    const stretto::GradientDescription gradient{
        .name = "gradient", .dtype = stretto::DType::f32, .count = bytes / sizeof(float)};
    stretto::Reducer reducer(*communicator, std::vector(kGradients, gradient),
                             {.bucket_bytes = {bucket_bytes}, .rebuild_buckets = false});
    for (int step = -kWarmUpSteps; step < steps; ++step) {
      communicator->barrier().wait();
      const long sent = counter("tx_bytes");
      const long received = counter("rx_bytes");
      for (std::size_t i = kGradients; i-- > 0;) {
        burn(of_gradient);
        reducer.mark_ready(i);
      }
      reducer.finalize();
      if (step < 0) continue;
      std::printf("%s[%.6f, %ld, %ld]", step == 0 ? "[" : ", ",
                  reducer.last_step().communication_seconds, counter("tx_bytes") - sent,
                  counter("rx_bytes") - received);
    }
    std::printf("]\n");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
