// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/memory_limit.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>

#include "stretto/base/cgroup.h"
#include "stretto/base/parse_number.h"

namespace stretto {
namespace {

using Numbers = std::map<std::string, std::size_t>;

// Version 1 expresses "no limit" as the largest number of whole pages.
constexpr std::size_t kUnlimited = std::size_t{1} << 62;

std::size_t minus(std::size_t a, std::size_t b) { return a - std::min(a, b); }

// The number in a file; empty for "max", for no limit, or if there is no such file.
std::optional<std::size_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  const std::optional<std::size_t> number = parse_number<std::size_t>(word);
  return number && *number < kUnlimited ? number : std::nullopt;
}

// Reads lines of a name and a number: memory.stat, and meminfo, where names end with ':'.
Numbers numbers_in(const std::string& path) {
  Numbers numbers;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    std::size_t number = 0;
    if (words >> name >> number) numbers[name] = number;
  }
  return numbers;
}

// The names of the files of one version of cgroups.
struct Version {
  CgroupVersion number = CgroupVersion::first;
  std::string_view limit;
  std::string_view used;
  // Names in memory.stat. In version 1, names with "total_" include child cgroups.
  std::array<std::string_view, 3> reclaimable;
  std::string_view shared;
};

constexpr Version kFirst = {.number = CgroupVersion::first,
                            .limit = "/memory.limit_in_bytes",
                            .used = "/memory.usage_in_bytes",
                            .reclaimable = {"total_inactive_file", "total_active_file", ""},
                            .shared = "total_shmem"};
constexpr Version kSecond = {.number = CgroupVersion::second,
                             .limit = "/memory.max",
                             .used = "/memory.current",
                             .reclaimable = {"inactive_file", "active_file", "slab_reclaimable"},
                             .shared = "shmem"};

std::size_t value_of(const Numbers& numbers, std::string_view name) {
  const auto found = numbers.find(std::string(name));
  return found == numbers.end() ? 0 : found->second;
}

// How many bytes a cgroup may still swap out; without a limit, all that the machine can.
std::size_t swap_left(const Version& version, const std::string& folder, std::size_t limit,
                      std::size_t used, std::size_t free) {
  if (version.number == CgroupVersion::first) {
    const auto both = number_in(folder + "/memory.memsw.limit_in_bytes");
    const auto both_used = number_in(folder + "/memory.memsw.usage_in_bytes");
    if (!both || !both_used) return free;
    return std::min(free, minus(minus(*both, *both_used), minus(limit, used)));
  }
  const auto swap = number_in(folder + "/memory.swap.max");
  const auto swapped = number_in(folder + "/memory.swap.current");
  return swap ? std::min(free, minus(*swap, swapped.value_or(0))) : free;
}

std::optional<MemoryLeft> left_in(const Version& version, const std::string& root,
                                  const std::string& folder, std::size_t promised_bytes,
                                  std::size_t free_swap) {
  const std::string path = root + folder;
  const auto limit = number_in(path + std::string(version.limit));
  const auto used = number_in(path + std::string(version.used));
  if (!limit || !used) return std::nullopt;
  const Numbers stat = numbers_in(path + "/memory.stat");
  std::size_t reclaimable = 0;
  for (const std::string_view name : version.reclaimable) reclaimable += value_of(stat, name);
  const std::size_t swap = swap_left(version, path, *limit, *used, free_swap);
  const std::size_t untouched = minus(promised_bytes, value_of(stat, version.shared));
  return MemoryLeft{.left_bytes = minus(minus(*limit, minus(*used, reclaimable)) + swap, untouched),
                    .limit_bytes = *limit + swap,
                    .source = folder + std::string(version.limit)};
}

std::optional<MemoryLeft> left_on_machine(const Numbers& meminfo, std::size_t promised_bytes) {
  const auto bytes = [&](std::string_view name) { return value_of(meminfo, name) * 1024; };
  if (!meminfo.contains("MemAvailable:")) return std::nullopt;
  const std::size_t untouched = minus(promised_bytes, bytes("Shmem:"));
  return MemoryLeft{.left_bytes = minus(bytes("MemAvailable:") + bytes("SwapFree:"), untouched),
                    .limit_bytes = bytes("MemTotal:") + bytes("SwapTotal:"),
                    .source = "/proc/meminfo"};
}

// "600.0 MiB".
std::string readable(std::size_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace

std::optional<MemoryLeft> find_memory_left(std::size_t promised_bytes, const std::string& root) {
  const Numbers meminfo = numbers_in(root + "/proc/meminfo");
  const std::size_t free_swap = value_of(meminfo, "SwapFree:") * 1024;
  std::optional<MemoryLeft> least = left_on_machine(meminfo, promised_bytes);
  for (const Version& version : {kFirst, kSecond}) {
    for (const std::string& folder : cgroup_folders(version.number, "memory", root)) {
      const auto left = left_in(version, root, folder, promised_bytes, free_swap);
      if (left && (!least || left->left_bytes < least->left_bytes)) least = left;
    }
  }
  return least;
}

Status check_memory_left(Rank rank, std::size_t bytes, const std::optional<MemoryLeft>& left) {
  if (!left || bytes <= left->left_bytes) return {};
  return Status(
      StatusCode::out_of_memory,
      fmt::format("rank {}: {} bytes ({}) of memory do not fit: {} bytes ({}) are left of the {} "
                  "that {} grants, and who takes more is killed. Allocate less, run fewer ranks on "
                  "this host, or raise that limit (STRETTO_MEMORY_CHECK=off: do not look)",
                  rank.value(), bytes, readable(bytes), left->left_bytes,
                  readable(left->left_bytes), readable(left->limit_bytes), left->source),
      rank);
}

}  // namespace stretto
