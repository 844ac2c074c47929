// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <vector>

#include "stretto/base/status.h"
#include "tools/launch/options.h"

namespace stretto::launch {

// The hosts of a job: `text` is the name of a file with a host a line ("node0", or "node0 slots=4";
// "#" begins a comment), or, if there is no such file, names separated by commas. A host has as
// many ranks as slots, `ranks` without. One that is named several times in a row has those of all
// of these lines; one that is named again after others is refused.
Result<std::vector<HostShare>> read_hosts(const std::string& text, int ranks);

// Fails where several hosts are to meet at the first one, and its name or address is loopback's.
Status check_meeting_place(const LaunchOptions& options);

}  // namespace stretto::launch
