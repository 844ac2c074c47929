// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace stretto {

enum class CgroupVersion {
  first,   // One hierarchy per controller.
  second,  // One hierarchy for all controllers.
};

// The folders whose limits apply to this process, the innermost first: the folder of its own cgroup
// and those of all its parents, as far as they are visible. Empty if there is no such hierarchy.
//
// `controller` is "memory", "cpu" and the like. `root` is a prefix of every path that is read, for
// tests; the returned paths do not have it. Reads two small files; any thread.
std::vector<std::string> cgroup_folders(CgroupVersion version, std::string_view controller,
                                        const std::string& root = {});

}  // namespace stretto
