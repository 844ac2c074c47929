// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <vector>

#include "stretto/base/status.h"
#include "tools/launch/options.h"

namespace stretto::launch {

// Returns the hosts of a job. `text` is the name of a file with one host per line ("node0", or
// "node0 slots=4"; "#" begins a comment) or, if there is no such file, a list of names separated by
// commas. A host has as many ranks as its slots, or `ranks` without them. The ranks of lines in a
// row for the same host add up; a host that is named again after others is an error.
Result<std::vector<HostShare>> read_hosts(const std::string& text, int ranks);

// Fails if several hosts would meet at the first one, but its name or address means loopback.
Status check_meeting_place(const LaunchOptions& options);

}  // namespace stretto::launch
