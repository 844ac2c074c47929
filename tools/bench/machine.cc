// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/machine.h"

#include <sys/utsname.h>

#include <fstream>

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

}  // namespace stretto::bench
