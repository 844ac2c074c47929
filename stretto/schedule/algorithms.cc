// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms.h"

#include <array>

#include "stretto/schedule/binomial_tree.h"
#include "stretto/schedule/direct.h"
#include "stretto/schedule/direct_mapped.h"
#include "stretto/schedule/recursive_doubling.h"
#include "stretto/schedule/ring.h"
#include "stretto/schedule/staged_mapped.h"

namespace stretto::schedule {
namespace {

using enum Collective;
using enum Access;

// clang-format off
constexpr std::array kAlgorithms = {
    Algorithm{1, "ring", all_reduce, messages, Order::fixed, ring_all_reduce},
    Algorithm{1, "ring", reduce_scatter, messages, Order::fixed, ring_reduce_scatter},
    Algorithm{1, "ring", all_gather, messages, Order::none, ring_all_gather},
    Algorithm{2, "direct", all_reduce, messages, Order::canonical, direct_all_reduce},
    Algorithm{2, "direct", reduce_scatter, messages, Order::canonical, direct_reduce_scatter},
    Algorithm{2, "direct", all_gather, messages, Order::none, direct_all_gather},
    Algorithm{2, "direct", broadcast, messages, Order::none, direct_broadcast},
    Algorithm{3, "recursive_doubling", all_reduce, messages, Order::canonical,
              recursive_doubling_all_reduce},
    Algorithm{3, "recursive_doubling", all_gather, messages, Order::none,
              recursive_doubling_all_gather},
    Algorithm{3, "recursive_doubling", barrier, messages, Order::none, recursive_doubling_barrier},
    Algorithm{4, "binomial_tree", all_reduce, messages, Order::canonical,
              binomial_tree_all_reduce},
    Algorithm{4, "binomial_tree", broadcast, messages, Order::none, binomial_tree_broadcast},
    Algorithm{5, "direct_mapped", all_reduce, mapped, Order::canonical, direct_mapped_all_reduce},
    Algorithm{5, "direct_mapped", reduce_scatter, mapped, Order::canonical,
              direct_mapped_reduce_scatter},
    Algorithm{5, "direct_mapped", all_gather, mapped, Order::none, direct_mapped_all_gather},
    Algorithm{5, "direct_mapped", broadcast, mapped, Order::none, direct_mapped_broadcast},
    Algorithm{5, "direct_mapped", barrier, mapped, Order::none, direct_mapped_barrier},
    Algorithm{6, "staged_mapped", all_reduce, mapped, Order::canonical, staged_mapped_all_reduce},
    Algorithm{6, "staged_mapped", reduce_scatter, mapped, Order::canonical,
              staged_mapped_reduce_scatter},
    Algorithm{6, "staged_mapped", all_gather, mapped, Order::none, staged_mapped_all_gather},
    Algorithm{6, "staged_mapped", broadcast, mapped, Order::none, staged_mapped_broadcast},
};
// clang-format on

}  // namespace

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
