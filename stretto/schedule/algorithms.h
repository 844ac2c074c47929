// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "stretto/base/status.h"
#include "stretto/schedule/schedule.h"

namespace stretto::schedule {

// All that an algorithm may depend on. The algorithm builds the steps of `rank` only, in
// O(rank_count) memory.
struct Shape {
  Rank rank = 0;
  std::int32_t rank_count = 1;
  Rank root = 0;  // Only of collectives that have a root.
  // Per rank, the number of its host. Hosts are numbered 0, 1, ... in the order in which they first
  // appear. Empty: all ranks are on one host. The memory must stay valid until build() returns.
  std::span<const std::int32_t> hosts = {};
};

class ScheduleBuilder;

// Adds the steps of the shape's rank. The schedule has one chunk, unless the collective fixes
// another number (required_chunks()) or the function calls ScheduleBuilder::cut_into().
using AddSteps = void(ScheduleBuilder& schedule, const Shape& shape);
using AlgorithmFunction = AddSteps*;

// Predicts how many seconds an algorithm takes; see estimate().
class EstimateModel;
using ClosedForm = double(const EstimateModel& model);

// One row of the catalogue.
struct Algorithm {
  // Stable number of the algorithm's family. With the collective it identifies one algorithm. It
  // travels in OperationDescriptor::algorithm; 0 is never used.
  std::uint8_t id = 0;
  std::string_view name;  // "ring", "direct", ...; unique per collective.
  Collective collective = Collective::barrier;
  Access access = Access::messages;
  Order order = Order::none;
  AlgorithmFunction add_steps = nullptr;
  ClosedForm* closed_form = nullptr;  // Null: is_estimated() is false.
  // Whether all chunks that belong to ranks must have the same size. Some algorithms let a rank
  // forward chunks between other ranks, and in an all_to_all that rank does not know the sizes of
  // those chunks. Others need all ranks to cut their chunks into the same number of segments.
  bool equal_chunks = false;

  Schedule build(const Shape& shape) const;
  // The schedules of all ranks, in the order of ranks.
  std::vector<Schedule> build_all(std::int32_t rank_count, Rank root = 0,
                                  std::span<const std::int32_t> hosts = {}) const;
};

// Every algorithm that exists, in a fixed order.
std::span<const Algorithm> algorithms();

// Returns null if no algorithm of that name exists.
const Algorithm* find_algorithm(Collective collective, Access access, std::string_view name);

// Fails (invalid_argument) if no collective has an algorithm of that name, and lists those that
// exist. The text begins with `source`: where the name comes from.
Status check_algorithm(std::string_view source, std::string_view name);

}  // namespace stretto::schedule
