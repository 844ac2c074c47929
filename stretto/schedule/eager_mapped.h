// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/schedule/algorithms.h"

namespace stretto::schedule {

// What each does, what it costs and when to choose it: docs/algorithms.md and eager_mapped.cc.
Schedule eager_mapped_all_reduce(const Shape& shape);
Schedule eager_mapped_reduce(const Shape& shape);

}  // namespace stretto::schedule
