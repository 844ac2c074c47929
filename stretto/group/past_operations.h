// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "stretto/base/operation.h"

namespace stretto::group {

// The collectives of a group that have ended, to compare with what late ranks say about them. Runs
// of equal operations take one entry, so a program that repeats an operation is remembered however
// far it runs ahead of other ranks.
class PastOperations {
 public:
  // `may_join(s)`: whether operation `s` is still running, and will be added later.
  template <class MayJoin>
  void add(std::uint32_t sequence, const OperationDescriptor& operation, const MayJoin& may_join) {
    Run& last = runs_[last_];
    bool continues = last.any && last.operation == operation && sequence >= last.end &&
                     sequence - last.end < kGapMax;
    for (std::uint32_t s = last.end; continues && s < sequence; ++s) continues = may_join(s);
    if (continues) {
      last.end = sequence + 1;
      return;
    }
    // Nothing to add if an earlier run already covers it with the same operation.
    const OperationDescriptor* known = find(sequence);
    if (known != nullptr && *known == operation) return;
    last_ = (last_ + 1) % runs_.size();
    runs_[last_] = {.begin = sequence, .end = sequence + 1, .any = true, .operation = operation};
  }

  // The operation with number `sequence`; null if it is forgotten or was never added.
  const OperationDescriptor* find(std::uint32_t sequence) const {
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const Run& run = runs_[(last_ + runs_.size() - i) % runs_.size()];
      if (run.any && run.begin <= sequence && sequence < run.end) return &run.operation;
    }
    return nullptr;
  }

  void clear() { runs_ = {}; }

 private:
  // Consecutive equal operations.
  struct Run {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
    bool any = false;
    OperationDescriptor operation;
  };
  static constexpr std::uint32_t kGapMax = 8;

  std::array<Run, 32> runs_;
  std::size_t last_ = 0;
};

}  // namespace stretto::group
