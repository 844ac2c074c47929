// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/schedule/algorithms.h"

namespace stretto::schedule {

// What each does, what it costs and when to choose it: docs/algorithms.md and
// double_binary_tree.cc.
Schedule double_binary_tree_all_reduce(const Shape& shape);
Schedule double_binary_tree_reduce(const Shape& shape);
Schedule double_binary_tree_broadcast(const Shape& shape);

}  // namespace stretto::schedule
