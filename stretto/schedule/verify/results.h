// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/base/status.h"
#include "stretto/schedule/joint.h"
#include "stretto/schedule/verify/expression.h"

namespace stretto::schedule {

// Parts of verify(). The schedules have passed check_structure() and check_messages(), and the
// execution is complete.

// Executes symbolically and compares every output chunk of every rank with what the collective
// promises.
Status check_results(const JointSchedule& joint, const JointRun& execution, bool in_place,
                     ExpressionPool& pool);

// No rank leaves a barrier before every rank has entered it.
Status check_barrier(const JointSchedule& joint, const JointRun& execution);

}  // namespace stretto::schedule
