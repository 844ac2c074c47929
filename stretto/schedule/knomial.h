// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/schedule/algorithms.h"

namespace stretto::schedule {

// What each does, what it costs and when to choose it: docs/algorithms.md and knomial.cc.
Schedule knomial_reduce(const Shape& shape);
Schedule knomial_broadcast(const Shape& shape);

}  // namespace stretto::schedule
