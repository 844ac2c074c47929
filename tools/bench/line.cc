// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/line.h"

#include <sys/utsname.h>

#include <cmath>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tools/bench/options.h"

namespace stretto::bench {
namespace {

// Three decimals of a microsecond are a nanosecond; more digits would be noise.
nlohmann::json rounded(double value, double digits = 1000) {
  if (!std::isfinite(value)) return nullptr;
  return std::round(value * digits) / digits;
}

nlohmann::json optional(const std::optional<double>& value) {
  return value ? rounded(*value, 10000) : nlohmann::json(nullptr);
}

}  // namespace

void set_bandwidths(Line& line, double bus_factor) {
  if (line.time.p50_us <= 0) return;
  line.algorithm_bandwidth = static_cast<double>(line.bytes) / line.time.p50_us / 1e3;
  line.bus_bandwidth = line.algorithm_bandwidth * bus_factor;
}

std::string check_name(Check check) {
  if (check == Check::none) return "-";
  return check == Check::ok ? "ok" : "wrong";
}

std::string to_json(const Line& line) {
  nlohmann::ordered_json object = {{"operation", line.operation},
                                   {"ranks", line.ranks},
                                   {"bytes", line.bytes},
                                   {"count", line.count},
                                   {"dtype", line.dtype},
                                   {"op", line.op},
                                   {"buffers", line.buffers},
                                   {"in_place", line.in_place},
                                   {"system", "stretto"},
                                   {"version", line.version},
                                   {"transport", line.transport},
                                   {"algorithm", line.algorithm},
                                   {"p50_us", rounded(line.time.p50_us)},
                                   {"p99_us", rounded(line.time.p99_us)},
                                   {"max_us", rounded(line.time.max_us)},
                                   {"min_us", rounded(line.time.min_us)},
                                   {"samples", line.time.samples},
                                   {"batched", line.time.batched},
                                   {"regime", line.regime},
                                   {"latency_before_ns", rounded(line.time.latency_before_ns)},
                                   {"latency_after_ns", rounded(line.time.latency_after_ns)},
                                   {"repeat", line.repeat},
                                   {"algbw_gbps", rounded(line.algorithm_bandwidth)},
                                   {"busbw_gbps", rounded(line.bus_bandwidth)},
                                   {"copy_us", optional(line.copy_us)},
                                   {"efficiency", optional(line.efficiency())},
                                   {"check", check_name(line.check)}};
  return object.dump();
}

namespace {

// Returns the text behind "name :" in /proc/cpuinfo.
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
