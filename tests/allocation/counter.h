// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

namespace stretto::testing {

// While it exists, counts the allocations of this program on all of its threads. Not nested.
class AllocationCount {
 public:
  AllocationCount();
  ~AllocationCount();
  AllocationCount(const AllocationCount&) = delete;
  AllocationCount& operator=(const AllocationCount&) = delete;

  long value() const;
};

// While it exists, `failures` allocations in a row fail on a thread with the name `thread`. The
// first of them is that thread's `number`th, counted from 1. Not nested.
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
