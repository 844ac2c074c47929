// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <bitset>

namespace stretto {

// Processors by their number in the kernel; those beyond are left out.
using ProcessorSet = std::bitset<512>;
// Those on which this thread may run. None: the kernel does not say.
ProcessorSet affinity();

// How many cores this process may use at a time: the smaller of its affinity mask and its cgroup's
// quota (rounded up), at least 1. The count of processors of the machine says nothing in a
// container.
int usable_cores();
// The same of several processes in this one's cgroup, of which each may run on some of
// `processors`: launchers bind each to a part.
int usable_cores(const ProcessorSet& processors);

}  // namespace stretto
