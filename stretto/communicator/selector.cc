// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/selector.h"

#include <string>

#include <fmt/format.h>

namespace stretto::communicator {
namespace {

using schedule::Access;
using schedule::Algorithm;

std::string names(Collective collective, bool mapped) {
  std::string list;
  for (const Algorithm& algorithm : schedule::algorithms()) {
    if (algorithm.collective != collective) continue;
    if (algorithm.access == Access::mapped && !mapped) continue;
    list += (list.empty() ? "" : ", ") + std::string(algorithm.name);
  }
  return list;
}

}  // namespace

const Algorithm* Selector::cheapest(const OperationDescriptor& operation) const {
  const Algorithm* best = nullptr;
  double best_seconds = 0;
  const std::size_t element_bytes = size_bytes(operation.dtype);
  const schedule::CostQuery query{
      .bytes = operation.count * element_bytes,
      .segment_bytes = 0,
      .partial_scale =
          static_cast<int>(size_bytes(accumulation_dtype(operation.dtype)) / element_bytes),
      .link = link_};
  for (const Algorithm* candidate :
       schedule::algorithms_for(operation.collective, Access::messages)) {
    // Any other order would make the bits depend on the algorithm.
    if (candidate->order == schedule::Order::fixed) continue;
    const schedule::Cost cost = schedule::cost(*candidate, rank_count_, query);
    if (best == nullptr || cost.seconds < best_seconds) {
      best = candidate;
      best_seconds = cost.seconds;
    }
  }
  return best;
}

Result<Choice> Selector::choose(const OperationDescriptor& operation, std::string_view wanted,
                                bool mapped) const {
  const Collective collective = operation.collective;
  Choice choice;
  if (wanted.empty() && mapped) {
    choice.direct = schedule::find_algorithm(collective, Access::mapped, "direct_mapped");
    choice.staged = schedule::find_algorithm(collective, Access::mapped, "staged_mapped");
    if (choice.direct != nullptr) return choice;
  }
  if (wanted.empty()) {
    choice.messages = cheapest(operation);
  } else {
    choice.messages = schedule::find_algorithm(collective, Access::messages, wanted);
    const Algorithm* on_memory =
        mapped ? schedule::find_algorithm(collective, Access::mapped, wanted) : nullptr;
    if (on_memory != nullptr) {
      (wanted == "staged_mapped" ? choice.staged : choice.direct) = on_memory;
      return choice;
    }
  }
  if (choice.messages != nullptr) return choice;
  return status_of(StatusCode::invalid_argument,
                   "there is no algorithm \"{}\" for {} here; there are: {}", wanted,
                   name(collective), names(collective, mapped));
}

}  // namespace stretto::communicator
