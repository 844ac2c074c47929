// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>

#include "stretto/schedule/builder.h"

namespace stretto::schedule {

// The way up and the way down of algorithms that move a whole buffer, as one chunk, along the
// canonical tree. `merged_levels` of it, 1 or 2, are climbed in one step: then a node has up to two
// or four subtrees.

// Every rank's input climbs to the shape's root, whose output holds the result in the end. Of the
// ranks below a node the root speaks for all, and where it is not among them, the first: so the
// tree stays the canonical one whoever is root, and the root needs no extra hop.
void climb_tree(ScheduleBuilder& schedule, const Shape& shape, std::int32_t merged_levels);

// The root's buffer, which lies in `whole` there, goes down to everybody's output. Ranks are placed
// on the tree from the root on. The largest subtree is served first: it has the longest way to go.
void descend_tree(ScheduleBuilder& schedule, const Shape& shape, std::int32_t merged_levels,
                  Slot whole);

}  // namespace stretto::schedule
