// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms.h"

#include <array>
#include <utility>

#include "stretto/schedule/algorithms/all.h"
#include "stretto/schedule/builder.h"

namespace stretto::schedule {
namespace {

using enum Collective;
using enum Access;

constexpr bool kEqualChunks = true;
constexpr bool kReference = true;

// clang-format off
constexpr std::array kAlgorithms = {
    Algorithm{1, "ring", all_reduce, messages, Order::fixed, ring_all_reduce},
    Algorithm{1, "ring", reduce_scatter, messages, Order::fixed, ring_reduce_scatter},
    Algorithm{1, "ring", all_gather, messages, Order::none, ring_all_gather},
    Algorithm{2, "direct", all_reduce, messages, Order::canonical, direct_all_reduce},
    Algorithm{2, "direct", reduce_scatter, messages, Order::canonical, direct_reduce_scatter},
    Algorithm{2, "direct", all_gather, messages, Order::none, direct_all_gather},
    Algorithm{2, "direct", broadcast, messages, Order::none, direct_broadcast},
    Algorithm{2, "direct", reduce, messages, Order::canonical, direct_reduce},
    Algorithm{2, "direct", gather, messages, Order::none, direct_gather},
    Algorithm{2, "direct", scatter, messages, Order::none, direct_scatter},
    Algorithm{2, "direct", barrier, messages, Order::none, direct_barrier},
    Algorithm{3, "recursive_doubling", all_reduce, messages, Order::canonical,
              recursive_doubling_all_reduce},
    Algorithm{3, "recursive_doubling", all_gather, messages, Order::none,
              recursive_doubling_all_gather},
    Algorithm{3, "recursive_doubling", barrier, messages, Order::none, recursive_doubling_barrier},
    Algorithm{4, "binomial_tree", all_reduce, messages, Order::canonical,
              binomial_tree_all_reduce},
    Algorithm{4, "binomial_tree", broadcast, messages, Order::none, binomial_tree_broadcast},
    Algorithm{4, "binomial_tree", reduce, messages, Order::canonical, binomial_tree_reduce},
    Algorithm{4, "binomial_tree", gather, messages, Order::none, binomial_tree_gather},
    Algorithm{4, "binomial_tree", scatter, messages, Order::none, binomial_tree_scatter},
    Algorithm{4, "binomial_tree", barrier, messages, Order::none, binomial_tree_barrier},
    Algorithm{5, "direct_mapped", all_reduce, mapped, Order::canonical, direct_mapped_all_reduce},
    Algorithm{5, "direct_mapped", reduce_scatter, mapped, Order::canonical,
              direct_mapped_reduce_scatter},
    Algorithm{5, "direct_mapped", all_gather, mapped, Order::none, direct_mapped_all_gather},
    Algorithm{5, "direct_mapped", broadcast, mapped, Order::none, direct_mapped_broadcast},
    Algorithm{5, "direct_mapped", reduce, mapped, Order::canonical, direct_mapped_reduce},
    Algorithm{5, "direct_mapped", gather, mapped, Order::none, direct_mapped_gather},
    Algorithm{5, "direct_mapped", scatter, mapped, Order::none, direct_mapped_scatter},
    Algorithm{5, "direct_mapped", all_to_all, mapped, Order::none, direct_mapped_all_to_all,
              kEqualChunks},
    Algorithm{5, "direct_mapped", barrier, mapped, Order::none, direct_mapped_barrier},
    Algorithm{6, "staged_mapped", all_reduce, mapped, Order::canonical, staged_mapped_all_reduce},
    Algorithm{6, "staged_mapped", reduce_scatter, mapped, Order::canonical,
              staged_mapped_reduce_scatter},
    Algorithm{6, "staged_mapped", all_gather, mapped, Order::none, staged_mapped_all_gather},
    Algorithm{6, "staged_mapped", broadcast, mapped, Order::none, staged_mapped_broadcast},
    Algorithm{6, "staged_mapped", reduce, mapped, Order::canonical, staged_mapped_reduce},
    Algorithm{6, "staged_mapped", gather, mapped, Order::none, staged_mapped_gather},
    Algorithm{6, "staged_mapped", scatter, mapped, Order::none, staged_mapped_scatter},
    Algorithm{6, "staged_mapped", all_to_all, mapped, Order::none, staged_mapped_all_to_all,
              kEqualChunks},
    Algorithm{7, "pairwise", all_to_all, messages, Order::none, pairwise_all_to_all},
    Algorithm{8, "bruck", all_to_all, messages, Order::none, bruck_all_to_all, kEqualChunks},
    Algorithm{9, "knomial", reduce, messages, Order::canonical, knomial_reduce},
    Algorithm{9, "knomial", broadcast, messages, Order::none, knomial_broadcast},
    Algorithm{8, "bruck", all_gather, messages, Order::none, bruck_all_gather},
    Algorithm{10, "recursive_halving", all_reduce, messages, Order::canonical,
              recursive_halving_all_reduce},
    Algorithm{10, "recursive_halving", reduce_scatter, messages, Order::canonical,
              recursive_halving_reduce_scatter},
    Algorithm{11, "double_binary_tree", all_reduce, messages, Order::fixed,
              double_binary_tree_all_reduce},
    Algorithm{11, "double_binary_tree", reduce, messages, Order::fixed, double_binary_tree_reduce},
    Algorithm{11, "double_binary_tree", broadcast, messages, Order::none,
              double_binary_tree_broadcast},
    Algorithm{12, "two_level", all_reduce, messages, Order::canonical, two_level_all_reduce},
    Algorithm{12, "two_level", reduce_scatter, messages, Order::canonical,
              two_level_reduce_scatter},
    Algorithm{12, "two_level", all_gather, messages, Order::none, two_level_all_gather},
    Algorithm{12, "two_level", broadcast, messages, Order::none, two_level_broadcast},
    Algorithm{13, "textbook_ring", all_reduce, messages, Order::canonical,
              textbook_ring_all_reduce, false, kReference},
    Algorithm{14, "eager_mapped", all_reduce, mapped, Order::canonical, eager_mapped_all_reduce},
    Algorithm{14, "eager_mapped", reduce, mapped, Order::canonical, eager_mapped_reduce},
    Algorithm{15, "two_level_mapped", all_reduce, both, Order::canonical,
              two_level_mapped_all_reduce},
    Algorithm{15, "two_level_mapped", reduce_scatter, both, Order::canonical,
              two_level_mapped_reduce_scatter},
    Algorithm{15, "two_level_mapped", all_gather, both, Order::none, two_level_mapped_all_gather},
    Algorithm{15, "two_level_mapped", broadcast, both, Order::none, two_level_mapped_broadcast},
    Algorithm{15, "two_level_mapped", reduce, both, Order::canonical, two_level_mapped_reduce},
    Algorithm{15, "two_level_mapped", gather, both, Order::none, two_level_mapped_gather},
    Algorithm{15, "two_level_mapped", scatter, both, Order::none, two_level_mapped_scatter},
    Algorithm{15, "two_level_mapped", barrier, both, Order::none, two_level_mapped_barrier},
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

std::span<const Algorithm> algorithms() { return kAlgorithms; }

std::vector<const Algorithm*> algorithms_for(Collective collective, Access access) {
  std::vector<const Algorithm*> found;
  for (const Algorithm& algorithm : kAlgorithms) {
    if (algorithm.collective == collective && algorithm.access == access) {
      found.push_back(&algorithm);
    }
  }
  return found;
}

const Algorithm* find_algorithm(Collective collective, Access access, std::string_view name) {
  for (const Algorithm* algorithm : algorithms_for(collective, access)) {
    if (algorithm->name == name) return algorithm;
  }
  return nullptr;
}

}  // namespace stretto::schedule
