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

// While it exists, so many allocations on a thread of that name fail, one behind the other; the
// first of them has that number, from 1. Not nested.
class AllocationFailure {
 public:
  explicit AllocationFailure(const char* thread, long number = 1, long failures = 1);
  ~AllocationFailure();
  AllocationFailure(const AllocationFailure&) = delete;
  AllocationFailure& operator=(const AllocationFailure&) = delete;

  // Whether all of them have failed.
  bool has_happened() const;
};

// Bytes allocated with `new` and not deleted yet, by the whole program.
long bytes_in_use();

}  // namespace stretto::testing
