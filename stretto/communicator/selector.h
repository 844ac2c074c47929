// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <utility>

#include "stretto/base/operation.h"
#include "stretto/base/status.h"
#include "stretto/schedule/algorithms.h"
#include "stretto/schedule/cost.h"

namespace stretto::communicator {

// The algorithms with which an operation runs: by messages, or on mapped memory (direct where all
// buffers are registered, staged elsewhere).
struct Choice {
  const schedule::Algorithm* messages = nullptr;
  const schedule::Algorithm* direct = nullptr;
  const schedule::Algorithm* staged = nullptr;
};

// Chooses algorithms. Every rank must choose alike, so the choice rests only on what all ranks
// know: the operation, the number of ranks, and the kind of the group's links.
class Selector {
 public:
  Selector(int rank_count, schedule::LinkCost link) : rank_count_(rank_count), link_(link) {}

  // The algorithm called `wanted`, or the cheapest that keeps the canonical order. `mapped`: all
  // ranks of the group have mapped each other's windows. Fails with a list of what is possible.
  Result<Choice> choose(const OperationDescriptor& operation, std::string_view wanted,
                        bool mapped) const;

 private:
  const schedule::Algorithm* cheapest(const OperationDescriptor& operation) const;

  int rank_count_;
  schedule::LinkCost link_;
};

}  // namespace stretto::communicator
