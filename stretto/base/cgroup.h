// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace stretto {

enum class CgroupVersion {
  first,   // A hierarchy per controller.
  second,  // One for all.
};

// The folders whose limits hold for this process, the innermost first: its own cgroup's and those
// of all its parents, as far as they can be seen. None if there is no such hierarchy.
//
// `controller` is "memory", "cpu" and the like. `root` goes before every path that is read, for
// tests; it does not go before those that are returned. Reads two small files; any thread.
std::vector<std::string> cgroup_folders(CgroupVersion version, std::string_view controller,
                                        const std::string& root = {});

}  // namespace stretto
