// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "stretto/schedule/schedule.h"

namespace stretto::schedule {

// Everything an algorithm may know. It builds the steps of `rank` only, in O(rank_count) memory.
struct Shape {
  Rank rank = 0;
  std::int32_t rank_count = 1;
  Rank root = 0;  // Collectives with a root only.
  // Per rank, the number of its host: 0, 1, ... in the order in which hosts first appear. Empty:
  // all ranks are on one. What refers to it must outlive the call of build().
  std::span<const std::int32_t> hosts = {};
};

class ScheduleBuilder;

// Adds the steps of the shape's rank. The schedule is one chunk, unless the collective says how
// many they are or this cuts it.
using AddSteps = void(ScheduleBuilder& schedule, const Shape& shape);
using AlgorithmFunction = AddSteps*;

// Predicts the seconds that it takes; see estimate().
class EstimateModel;
using ClosedForm = double(const EstimateModel& model);

// One row of the catalogue.
struct Algorithm {
  // Stable number of the family; with the collective it names one algorithm. Travels in
  // OperationDescriptor::algorithm. 0 is never used.
  std::uint8_t id = 0;
  std::string_view name;  // "ring", "direct", ...; unique per collective.
  Collective collective = Collective::barrier;
  Access access = Access::messages;
  Order order = Order::none;
  AlgorithmFunction add_steps = nullptr;
  ClosedForm* closed_form = nullptr;  // Of what may be chosen by predicted time.
  // Whether chunks that belong to ranks must all be of one size: where a rank handles chunks that
  // it neither sends nor receives for itself (of an all_to_all it does not know their sizes), or
  // where all ranks must cut them into equally many segments.
  bool equal_chunks = false;

  Schedule build(const Shape& shape) const;
  // Those of all ranks, in their order.
  std::vector<Schedule> build_all(std::int32_t rank_count, Rank root = 0,
                                  std::span<const std::int32_t> hosts = {}) const;
};

// Every algorithm that exists, in a fixed order.
std::span<const Algorithm> algorithms();

// Null if there is none of that name.
const Algorithm* find_algorithm(Collective collective, Access access, std::string_view name);

}  // namespace stretto::schedule
