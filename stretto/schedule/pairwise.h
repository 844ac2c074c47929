// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/schedule/algorithms.h"

namespace stretto::schedule {

// What it does, what it costs and when to choose it: docs/algorithms.md and pairwise.cc.
Schedule pairwise_all_to_all(const Shape& shape);

}  // namespace stretto::schedule
