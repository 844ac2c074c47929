// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>
#include <string>

#include "tools/bench/board.h"

namespace stretto::bench {

enum class Check { none, ok, wrong };

// One measured line, as rank 0 knows it.
struct Line {
  std::string operation = {};
  int ranks = 0;
  std::size_t bytes = 0;
  std::size_t count = 0;  // Elements of the larger of input and output.
  std::string dtype = {};
  std::string op = {};  // Empty if the operation does not reduce.
  std::string buffers = {};
  bool in_place = false;
  std::string algorithm = {};
  std::string transport = {};
  std::string version = {};
  Summary time = {};
  std::string regime = {};
  int repeat = 0;                  // From 0.
  double algorithm_bandwidth = 0;  // GB/s, of 10^9 bytes.
  double bus_bandwidth = 0;
  // The time of the copies that an all-reduce is compared with; empty for other operations.
  std::optional<double> copy_us = std::nullopt;
  Check check = Check::none;

  // 1 means that the all-reduce takes no longer than the copies.
  std::optional<double> efficiency() const {
    if (!copy_us || time.p50_us <= 0) return std::nullopt;
    return *copy_us / time.p50_us;
  }
};

// Sets both bandwidths from bytes, time, operation and ranks.
void set_bandwidths(Line& line, double bus_factor);

std::string check_name(Check check);

// Returns the line as a JSON object, without a line end.
std::string to_json(const Line& line);

// Where a line was measured. A field is empty if the system does not tell.
struct Machine {
  std::string processor = {};  // "AMD EPYC (family 26)"
  int cores = 0;               // Cores that this job's ranks may use on this host.
  std::string caches = {};     // "L1d 48 KiB, L2 1 MiB, L3 32 MiB"
  std::string kernel = {};     // "Linux 6.1.0"
};

Machine find_machine(int usable_cores);

}  // namespace stretto::bench
