// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/machine.h"

#include <sys/utsname.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include <fmt/format.h>

#include "tools/bench/options.h"

namespace stretto::bench {
namespace {

// What follows "name :" in /proc/cpuinfo.
std::string cpuinfo(std::string_view name) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    const bool found = line.starts_with(name) && colon != std::string::npos &&
                       line.find_last_not_of(" \t:", colon) + 1 == name.size();
    if (found) return line.substr(colon + 2);
  }
  return {};
}

std::string first_word(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

std::string caches() {
  std::string text;
  for (int index = 0; index < 8; ++index) {
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", index);
    const std::string type = first_word(folder + "type");
    if (type.empty() || type == "Instruction") continue;
    const auto bytes = parse_bytes(first_word(folder + "size"));
    text += fmt::format("{}L{}{} {}", text.empty() ? "" : ", ", first_word(folder + "level"),
                        type == "Data" ? "d" : "", bytes ? format_bytes(*bytes) : "?");
  }
  return text;
}

std::size_t number_in(const std::string& path) {
  const std::string word = first_word(path);
  const bool number = !word.empty() && std::all_of(word.begin(), word.end(),
                                                   [](char c) { return c >= '0' && c <= '9'; });
  return number && word.size() < 19 ? std::stoull(word) : 0;
}

}  // namespace

Machine find_machine(int usable_cores) {
  Machine machine{
      .processor = cpuinfo("model name"), .cores = usable_cores, .caches = caches(), .kernel = {}};
  const std::string family = cpuinfo("cpu family");
  if (!family.empty()) machine.processor += fmt::format(" (family {})", family);
  utsname system{};
  if (::uname(&system) == 0) machine.kernel = fmt::format("{} {}", system.sysname, system.release);
  return machine;
}

std::size_t available_memory_bytes() {
  std::size_t available = std::numeric_limits<std::size_t>::max();
  std::ifstream file("/proc/meminfo");
  std::string name;
  for (std::size_t kibibytes = 0; file >> name; file.ignore(64, '\n')) {
    if (name == "MemAvailable:" && file >> kibibytes) available = kibibytes * 1024;
  }
  const std::size_t limit = number_in("/sys/fs/cgroup/memory.max");
  const std::size_t used = number_in("/sys/fs/cgroup/memory.current");
  if (limit > 0) available = std::min(available, limit - std::min(limit, used));
  return available == std::numeric_limits<std::size_t>::max() ? 0 : available;
}

}  // namespace stretto::bench
