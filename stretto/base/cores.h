// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

namespace stretto {

// How many cores this process may use at a time: the smaller of its affinity mask and its cgroup's
// quota (rounded up), at least 1. The count of processors of the machine says nothing in a
// container.
int usable_cores();

}  // namespace stretto
