// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

namespace stretto::testing {

// Counts what this program allocates, on all of its threads, while it exists. Not nested.
class AllocationCount {
 public:
  AllocationCount();
  ~AllocationCount();
  AllocationCount(const AllocationCount&) = delete;
  AllocationCount& operator=(const AllocationCount&) = delete;

  long value() const;
};

// Bytes allocated with `new` and not deleted yet, by the whole program.
long bytes_in_use();

}  // namespace stretto::testing
