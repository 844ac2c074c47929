// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/selector.h"

#include <algorithm>
#include <bit>
#include <string>

#include <fmt/format.h>

namespace stretto::communicator {
namespace {

using schedule::Access;
using schedule::Algorithm;

// By all ranks together.
constexpr std::size_t kOneSyncBytes = 8 * 1024;

bool usable(const Algorithm& algorithm, bool mapped, bool equal_chunks) {
  return (mapped || algorithm.access != Access::mapped) &&
         (equal_chunks || !algorithm.equal_chunks);
}

std::string names(Collective collective, bool mapped, bool equal_chunks) {
  std::string list;
  for (const Algorithm& algorithm : schedule::algorithms()) {
    if (algorithm.collective != collective || !usable(algorithm, mapped, equal_chunks)) continue;
    list += (list.empty() ? "" : ", ") + std::string(algorithm.name);
  }
  return list;
}

}  // namespace

Selector::Kind Selector::kind_of(const OperationDescriptor& operation, bool equal_chunks) {
  const std::size_t element_bytes = size_bytes(operation.dtype);
  const std::size_t partial_bytes = size_bytes(accumulation_dtype(operation.dtype));
  return {.collective = operation.collective,
          .partial_scale = static_cast<int>(partial_bytes / element_bytes),
          .equal_chunks = equal_chunks,
          .bytes = std::bit_ceil(operation.count * element_bytes)};
}

std::vector<Selector::Candidate> Selector::candidates(const OperationDescriptor& operation,
                                                      bool equal_chunks) const {
  const Kind kind = kind_of(operation, equal_chunks);
  const bool one_host =
      std::ranges::all_of(setting_.hosts, [](std::int32_t host) { return host == 0; });
  const schedule::CostQuery query{
      .bytes = kind.bytes,
      .segment_bytes = 0,
      .partial_scale = kind.partial_scale,
      .link = one_host ? setting_.links.local : setting_.links.network,
      .local_link = setting_.links.local,
      .hosts = one_host ? std::span<const std::int32_t>() : setting_.hosts};
  std::vector<Candidate> candidates;
  for (const Algorithm* algorithm :
       schedule::algorithms_for(operation.collective, Access::messages)) {
    // Any other order would make the bits depend on the algorithm.
    if (algorithm->order == schedule::Order::fixed || algorithm->reference) continue;
    if (!usable(*algorithm, false, equal_chunks)) continue;
    candidates.push_back(
        {algorithm, schedule::cost(*algorithm, setting_.rank_count, query).seconds});
  }
  std::ranges::stable_sort(candidates, {}, &Candidate::seconds);
  return candidates;
}

// On mapped memory: whether to read other ranks' bytes twice, out of staging memory, costs less
// than a second sync, which registered buffers need.
bool Selector::one_sync_is_cheaper(const OperationDescriptor& operation) const {
  const std::size_t bytes = operation.count * size_bytes(operation.dtype);
  const auto ranks = static_cast<std::size_t>(setting_.rank_count);
  return bytes <= kOneSyncBytes / ranks;
}

const Algorithm* Selector::cheapest(const OperationDescriptor& operation, bool equal_chunks) {
  const auto [found, added] = chosen_.try_emplace(kind_of(operation, equal_chunks), nullptr);
  if (added) {
    const auto candidates = this->candidates(operation, equal_chunks);
    if (!candidates.empty()) found->second = candidates.front().algorithm;
  }
  return found->second;
}

Result<Choice> Selector::choose(const OperationDescriptor& operation, std::string_view wanted,
                                bool mapped, bool equal_chunks) {
  const Collective collective = operation.collective;
  const auto find = [&](Access access, std::string_view called) -> const Algorithm* {
    const Algorithm* found = schedule::find_algorithm(collective, access, called);
    return found != nullptr && usable(*found, mapped, equal_chunks) ? found : nullptr;
  };
  Choice choice;
  // Alone, a rank shares memory with nobody; a program that names an algorithm for it still runs.
  if (setting_.rank_count == 1 &&
      schedule::find_algorithm(collective, Access::mapped, wanted) != nullptr) {
    choice.messages = cheapest(operation, equal_chunks);
    return choice;
  }
  if (wanted.empty() && mapped && one_sync_is_cheaper(operation)) {
    choice.staged = find(Access::mapped, "eager_mapped");
    if (choice.staged == nullptr) choice.staged = find(Access::mapped, "staged_mapped");
    if (choice.staged != nullptr) return choice;
  }
  if (wanted == "eager_mapped") choice.staged = find(Access::mapped, wanted);
  if (wanted.empty() || wanted == "direct_mapped") {
    choice.direct = find(Access::mapped, "direct_mapped");
  }
  if (wanted.empty() || wanted == "staged_mapped") {
    choice.staged = find(Access::mapped, "staged_mapped");
  }
  if (choice.direct != nullptr || choice.staged != nullptr) return choice;
  choice.messages =
      wanted.empty() ? cheapest(operation, equal_chunks) : find(Access::messages, wanted);
  if (choice.messages != nullptr) return choice;
  return status_of(StatusCode::invalid_argument,
                   "there is no algorithm \"{}\" for {} here; there are: {}", wanted,
                   name(collective), names(collective, mapped, equal_chunks));
}

}  // namespace stretto::communicator
