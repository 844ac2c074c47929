// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/line.h"

#include <cmath>

#include <nlohmann/json.hpp>

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

}  // namespace stretto::bench
