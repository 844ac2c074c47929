// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// How things go on where a thread finds no memory.

#include <gtest/gtest.h>

#include "stretto/base/error.h"
#include "stretto/job/threads.h"
#include "tests/allocation/counter.h"

namespace stretto::testing {
namespace {

TEST(AllocationFails, ARankOfThreadsThatCannotBeMadeIsAFailure) {
  const AllocationFailure failure("stretto-rank");
  EXPECT_THROW(make_thread_ranks({.size = 1}), InternalError);
}

}  // namespace
}  // namespace stretto::testing
