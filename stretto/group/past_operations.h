// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "stretto/base/operation.h"

namespace stretto::group {

// The collectives of a group that have ended, for those who still say something about them. A
// program that does the same thing over and over, without waiting for others to keep up, is kept in
// a few words however far it runs ahead.
class PastOperations {
 public:
  // `may_join(s)`: whether operation `s` will be added, too, and only has not ended yet.
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
    // Has it been taken for a part of the run before, and rightly so?
    const OperationDescriptor* known = find(sequence);
    if (known != nullptr && *known == operation) return;
    last_ = (last_ + 1) % runs_.size();
    runs_[last_] = {.begin = sequence, .end = sequence + 1, .any = true, .operation = operation};
  }

  // What operation `sequence` was; null if it is forgotten, or never was here.
  const OperationDescriptor* find(std::uint32_t sequence) const {
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const Run& run = runs_[(last_ + runs_.size() - i) % runs_.size()];
      if (run.any && run.begin <= sequence && sequence < run.end) return &run.operation;
    }
    return nullptr;
  }

  void clear() { runs_ = {}; }

 private:
  // Equal operations, one behind the other.
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
