// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "stretto/base/environment.h"
#include "stretto/base/rank_vector.h"
#include "stretto/communicator/communicator.h"

// What gpu_driver.cc measures; ranks may be processes, or the threads of a test.
namespace stretto::bench {

// All-reduces that are begun together and then waited for, each on its own f32 elements.
struct Point {
  std::size_t bytes = 0;  // Of each all-reduce.
  std::size_t in_flight = 1;
};

struct Line {
  std::string system;
  Point point;
  // Microseconds in each round, on the slowest rank: from the first call to the last result, and
  // what one call takes on the host until it returns.
  std::vector<double> us = {};
  std::vector<double> call_us = {};
};

// This rank's communicators, all of the same ranks. If one is null, what needs it is left out.
struct GpuRank {
  Communicator& control;         // On host memory; may be one of the others.
  Communicator* nccl = nullptr;  // Of backend "nccl". "NCCL alone" needs it, too.
  Communicator* cuda = nullptr;  // Of backend "cuda".
  RankVector<int> hosts;         // The number of each rank's host.
};

// Whether a two-level all_reduce differs from a flat one: there are several hosts, with equally
// many ranks on each, and more than one.
bool have_two_levels(const RankVector<int>& hosts);

// Checks the sums of every system and point, and then measures the systems by turns. All ranks call
// it together, and get the same lines. `environment` says where NCCL and the driver are. Throws
// std::runtime_error if a sum is wrong, and what the communicators throw.
std::vector<Line> measure_all_reduce(const GpuRank& rank, std::span<const Point> points, int rounds,
                                     const Environment& environment);

}  // namespace stretto::bench
