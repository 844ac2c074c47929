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

// The next number in the file; empty for "max", or if there is no such file.
std::optional<double> number_in(std::ifstream& file) {
  double number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

// The quota of a cgroup in cores, from its quota and period: "150000 100000", or "max 100000".
std::optional<double> cgroup_v2_quota(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  const std::optional<double> quota = number_in(file);
  const std::optional<double> period = number_in(file);
  if (!quota || !period || *period <= 0) return std::nullopt;
  return *quota / *period;
}

// The same in two files. A quota of -1 means "no limit".
std::optional<double> cgroup_v1_quota(const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us");
  std::ifstream period_file(folder + "/cpu.cfs_period_us");
  const std::optional<double> quota = number_in(quota_file);
  const std::optional<double> period = number_in(period_file);
  if (!quota || !period || *quota < 0 || *period <= 0) return std::nullopt;
  return *quota / *period;
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
    take(cgroup_v2_quota(root + folder));
  }
  for (const std::string& folder : cgroup_folders(CgroupVersion::first, "cpu", root)) {
    take(cgroup_v1_quota(root + folder));
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
