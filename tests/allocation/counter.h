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

// While it exists, the first allocation on a thread of that name fails. Not nested.
class AllocationFailure {
 public:
  explicit AllocationFailure(const char* thread);
  ~AllocationFailure();
  AllocationFailure(const AllocationFailure&) = delete;
  AllocationFailure& operator=(const AllocationFailure&) = delete;
};

// Bytes allocated with `new` and not deleted yet, by the whole program.
long bytes_in_use();

}  // namespace stretto::testing
