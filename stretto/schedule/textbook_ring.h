// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/schedule/algorithms.h"

namespace stretto::schedule {

// What it does, what it costs and when not to choose it: docs/algorithms.md and textbook_ring.cc.
Schedule textbook_ring_all_reduce(const Shape& shape);

}  // namespace stretto::schedule
