// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <bitset>
#include <optional>
#include <string>

namespace stretto {

// A set of processors by their numbers in the kernel. Larger numbers are left out.
using ProcessorSet = std::bitset<1024>;
// The processors on which this thread may run. Empty if the kernel does not say.
ProcessorSet affinity();

// The processor time that the cgroup of this process and all its parents (versions 1 and 2) allow,
// in cores: 1.5, for example. Empty if there is no limit. `root` is a prefix of every path that is
// read, for tests. Reads a dozen small files.
std::optional<double> cgroup_quota_cores(const std::string& root = {});

// How many cores this process may use at a time: the smaller of the size of its affinity mask and
// the quota of its cgroups (rounded up), at least 1. In a container, the number of processors of
// the machine does not tell this.
int usable_cores();
// The same for several processes in the cgroup of this process that together may run on
// `processors`. Launchers bind each process to a part of the processors.
int usable_cores(const ProcessorSet& processors);

}  // namespace stretto
