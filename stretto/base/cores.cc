// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <thread>

namespace stretto {
namespace {

// cgroup version 2: "max 100000" or "150000 100000" (microseconds of every period).
int quota_cores(int unlimited) {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return unlimited;
  return static_cast<int>(std::ceil(std::strtod(quota.c_str(), nullptr) / period));
}

}  // namespace

ProcessorSet affinity() {
  ProcessorSet processors;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return processors;
  for (std::size_t i = 0; i < processors.size(); ++i) processors[i] = CPU_ISSET(i, &set);
  return processors;
}

int usable_cores() { return usable_cores(affinity()); }

int usable_cores(const ProcessorSet& processors) {
  const int cores = processors.none() ? static_cast<int>(std::thread::hardware_concurrency())
                                      : static_cast<int>(processors.count());
  return std::max(1, std::min(cores, quota_cores(cores)));
}

}  // namespace stretto
