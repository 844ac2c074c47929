// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms.h"

#include <algorithm>
#include <string>
#include <utility>

#include "stretto/schedule/algorithms/all.h"
#include "stretto/schedule/builder.h"

namespace stretto::schedule {
namespace {

using enum Collective;
using enum Access;
using enum Order;

constexpr bool kEqualChunks = true;

// The id 13 belonged to an algorithm that was removed. It stays unused.
// clang-format off
constexpr Algorithm kAlgorithms[] = {
    {1, "ring", all_reduce, messages, fixed, ring_all_reduce, time_of::ring_all_reduce},
    {1, "ring", reduce_scatter, messages, fixed, ring_reduce_scatter, time_of::ring_reduce_scatter},
    {1, "ring", all_gather, messages, none, ring_all_gather, time_of::ring_all_gather},
    {2, "direct", all_reduce, messages, canonical, direct_all_reduce, time_of::direct_all_reduce},
    {2, "direct", reduce_scatter, messages, canonical, direct_reduce_scatter,
     time_of::direct_reduce_scatter},
    {2, "direct", all_gather, messages, none, direct_all_gather, time_of::direct_all_gather},
    {2, "direct", broadcast, messages, none, direct_broadcast, time_of::direct_broadcast},
    {2, "direct", reduce, messages, canonical, direct_reduce, time_of::direct_reduce},
    {2, "direct", gather, messages, none, direct_gather, time_of::direct_gather},
    {2, "direct", scatter, messages, none, direct_scatter, time_of::direct_scatter},
    {2, "direct", barrier, messages, none, direct_barrier, time_of::direct_barrier},
    {3, "recursive_doubling", all_reduce, messages, canonical, recursive_doubling_all_reduce,
     time_of::recursive_doubling_all_reduce},
    {3, "recursive_doubling", all_gather, messages, none, recursive_doubling_all_gather,
     time_of::recursive_doubling_all_gather},
    {3, "recursive_doubling", barrier, messages, none, recursive_doubling_barrier,
     time_of::recursive_doubling_barrier},
    {4, "binomial_tree", all_reduce, messages, canonical, binomial_tree_all_reduce,
     time_of::binomial_tree_all_reduce},
    {4, "binomial_tree", broadcast, messages, none, binomial_tree_broadcast,
     time_of::binomial_tree_broadcast},
    {4, "binomial_tree", reduce, messages, canonical, binomial_tree_reduce,
     time_of::binomial_tree_reduce},
    {4, "binomial_tree", gather, messages, none, binomial_tree_gather,
     time_of::binomial_tree_gather},
    {4, "binomial_tree", scatter, messages, none, binomial_tree_scatter,
     time_of::binomial_tree_scatter},
    {4, "binomial_tree", barrier, messages, none, binomial_tree_barrier,
     time_of::binomial_tree_barrier},
    {5, "direct_mapped", all_reduce, mapped, canonical, direct_mapped_all_reduce},
    {5, "direct_mapped", reduce_scatter, mapped, canonical, direct_mapped_reduce_scatter},
    {5, "direct_mapped", all_gather, mapped, none, direct_mapped_all_gather},
    {5, "direct_mapped", broadcast, mapped, none, direct_mapped_broadcast},
    {5, "direct_mapped", reduce, mapped, canonical, direct_mapped_reduce},
    {5, "direct_mapped", gather, mapped, none, direct_mapped_gather},
    {5, "direct_mapped", scatter, mapped, none, direct_mapped_scatter},
    {5, "direct_mapped", all_to_all, mapped, none, direct_mapped_all_to_all, nullptr, kEqualChunks},
    {5, "direct_mapped", barrier, mapped, none, direct_mapped_barrier},
    {6, "staged_mapped", all_reduce, mapped, canonical, staged_mapped_all_reduce},
    {6, "staged_mapped", reduce_scatter, mapped, canonical, staged_mapped_reduce_scatter},
    {6, "staged_mapped", all_gather, mapped, none, staged_mapped_all_gather},
    {6, "staged_mapped", broadcast, mapped, none, staged_mapped_broadcast},
    {6, "staged_mapped", reduce, mapped, canonical, staged_mapped_reduce},
    {6, "staged_mapped", gather, mapped, none, staged_mapped_gather},
    {6, "staged_mapped", scatter, mapped, none, staged_mapped_scatter},
    {6, "staged_mapped", all_to_all, mapped, none, staged_mapped_all_to_all, nullptr, kEqualChunks},
    {7, "pairwise", all_to_all, messages, none, pairwise_all_to_all, time_of::pairwise_all_to_all},
    {8, "bruck", all_to_all, messages, none, bruck_all_to_all,
     time_of::bruck_all_to_all, kEqualChunks},
    {9, "knomial", reduce, messages, canonical, knomial_reduce, time_of::knomial_reduce},
    {9, "knomial", broadcast, messages, none, knomial_broadcast, time_of::knomial_broadcast},
    {10, "recursive_halving", all_reduce, messages, canonical, recursive_halving_all_reduce,
     time_of::recursive_halving_all_reduce},
    {10, "recursive_halving", reduce_scatter, messages, canonical, recursive_halving_reduce_scatter,
     time_of::recursive_halving_reduce_scatter},
    {11, "double_binary_tree", broadcast, messages, none, double_binary_tree_broadcast,
     time_of::double_binary_tree_broadcast},
    {12, "two_level", all_reduce, messages, canonical, two_level_all_reduce,
     time_of::two_level_all_reduce},
    {12, "two_level", reduce_scatter, messages, canonical, two_level_reduce_scatter,
     time_of::two_level_reduce_scatter},
    {12, "two_level", all_gather, messages, none, two_level_all_gather,
     time_of::two_level_all_gather},
    {12, "two_level", broadcast, messages, none, two_level_broadcast, time_of::two_level_broadcast},
    {14, "eager_mapped", all_reduce, mapped, canonical, eager_mapped_all_reduce},
    {14, "eager_mapped", reduce, mapped, canonical, eager_mapped_reduce},
    {15, "two_level_mapped", all_reduce, both, canonical, two_level_mapped_all_reduce,
     time_of::two_level_mapped_all_reduce},
    {15, "two_level_mapped", reduce_scatter, both, canonical, two_level_mapped_reduce_scatter,
     time_of::two_level_mapped_reduce_scatter},
    {15, "two_level_mapped", all_gather, both, none, two_level_mapped_all_gather,
     time_of::two_level_mapped_all_gather},
    {15, "two_level_mapped", broadcast, both, none, two_level_mapped_broadcast,
     time_of::two_level_mapped_broadcast},
    {15, "two_level_mapped", reduce, both, canonical, two_level_mapped_reduce,
     time_of::two_level_mapped_reduce},
    {15, "two_level_mapped", gather, both, none, two_level_mapped_gather,
     time_of::two_level_mapped_gather},
    {15, "two_level_mapped", scatter, both, none, two_level_mapped_scatter,
     time_of::two_level_mapped_scatter},
    {15, "two_level_mapped", all_to_all, both, none, two_level_mapped_all_to_all,
     time_of::two_level_mapped_all_to_all, kEqualChunks},
    {15, "two_level_mapped", barrier, both, none, two_level_mapped_barrier,
     time_of::two_level_mapped_barrier},
    {16, "two_level_eager", all_reduce, both, canonical, two_level_eager_all_reduce,
     time_of::two_level_eager_all_reduce},
};
// clang-format on

}  // namespace

Schedule Algorithm::build(const Shape& shape) const {
  ScheduleBuilder schedule(
      shape, {.algorithm = name,
              .collective = collective,
              .access = access,
              .order = order,
              .chunk_count = required_chunks(collective, shape.rank_count).value_or(1)});
  add_steps(schedule, shape);
  return std::move(schedule).build();
}

std::vector<Schedule> Algorithm::build_all(std::int32_t rank_count, Rank root,
                                           std::span<const std::int32_t> hosts) const {
  std::vector<Schedule> schedules;
  for (std::int32_t rank = 0; rank < rank_count; ++rank) {
    schedules.push_back(build({rank, rank_count, root, hosts}));
  }
  return schedules;
}

std::span<const Algorithm> algorithms() { return kAlgorithms; }

const Algorithm* find_algorithm(Collective collective, Access access, std::string_view name) {
  for (const Algorithm& algorithm : kAlgorithms) {
    if (algorithm.collective == collective && algorithm.access == access &&
        algorithm.name == name) {
      return &algorithm;
    }
  }
  return nullptr;
}

Status check_algorithm(std::string_view source, std::string_view name) {
  std::string names;
  for (const Algorithm& algorithm : kAlgorithms) {
    if (algorithm.name == name) return {};
    if (names.find(algorithm.name) == std::string::npos) {
      names += (names.empty() ? "" : ", ") + std::string(algorithm.name);
    }
  }
  return status_of(StatusCode::invalid_argument, "{}{} is no algorithm; there are: {}", source,
                   name, names);
}

}  // namespace stretto::schedule
