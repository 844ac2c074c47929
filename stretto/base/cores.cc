// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <thread>

#include "stretto/base/cgroup.h"

namespace stretto {
namespace {

// The quota of a cgroup in cores, from the next number of each file; empty without a limit, which
// is "max" or -1.
std::optional<double> read_quota(std::istream& quota_file, std::istream& period_file) {
  double quota = 0;
  double period = 0;
  if (!(quota_file >> quota) || !(period_file >> period) || quota < 0 || period <= 0) {
    return std::nullopt;
  }
  return quota / period;
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

std::optional<double> cgroup_quota_cores(const std::string& root) {
  std::optional<double> least;
  const auto take = [&](std::optional<double> quota) {
    if (quota && (!least || *quota < *least)) least = quota;
  };
  for (const std::string& folder : cgroup_folders(CgroupVersion::second, "cpu", root)) {
    std::ifstream both(root + folder + "/cpu.max");  // "150000 100000", or "max 100000".
    take(read_quota(both, both));
  }
  for (const std::string& folder : cgroup_folders(CgroupVersion::first, "cpu", root)) {
    std::ifstream quota(root + folder + "/cpu.cfs_quota_us");
    std::ifstream period(root + folder + "/cpu.cfs_period_us");
    take(read_quota(quota, period));
  }
  return least;
}

int usable_cores() { return usable_cores(affinity()); }

int usable_cores(const ProcessorSet& processors) {
  const int cores = processors.none() ? static_cast<int>(std::thread::hardware_concurrency())
                                      : static_cast<int>(processors.count());
  const std::optional<double> quota = cgroup_quota_cores();
  return std::max(1, quota ? static_cast<int>(std::min<double>(cores, std::ceil(*quota))) : cores);
}

}  // namespace stretto
