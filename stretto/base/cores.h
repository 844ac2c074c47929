// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <bitset>
#include <optional>
#include <string>

namespace stretto {

// Processors by their number in the kernel; those beyond are left out.
using ProcessorSet = std::bitset<1024>;
// Those on which this thread may run. None: the kernel does not say.
ProcessorSet affinity();

// How many cores' time the cgroup of this process and all its parents leave it (versions 1 and 2):
// 1.5, say. Nothing where there is no limit. `root` goes before every path that is read, for tests.
// Reads a dozen small files.
std::optional<double> cgroup_quota_cores(const std::string& root = {});

// How many cores this process may use at a time: the smaller of its affinity mask and its cgroups'
// quota (rounded up), at least 1. The count of processors of the machine says nothing in a
// container.
int usable_cores();
// The same of several processes in this one's cgroup, of which each may run on some of
// `processors`: launchers bind each to a part.
int usable_cores(const ProcessorSet& processors);

}  // namespace stretto
