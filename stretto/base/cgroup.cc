// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/cgroup.h"

#include <fstream>
#include <optional>
#include <sstream>

#include "stretto/base/take_word.h"

namespace stretto {
namespace {

// Whether `word` is an element of a comma-separated list.
bool lists(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    if (take_word(list, ',') == word) return true;
  }
  return false;
}

// The hierarchy of version 2, or that of one controller of version 1.
struct Hierarchy {
  CgroupVersion version;
  std::string_view controller;
};

// Where a hierarchy is mounted, and the topmost folder that is visible there.
struct Mount {
  std::string point;
  std::string top;
};

std::optional<Mount> find_mount(const Hierarchy& hierarchy, const std::string& root) {
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    // "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory"
    std::istringstream words(line);
    std::string word;
    Mount mount;
    words >> word >> word >> word >> mount.top >> mount.point;
    while (words >> word && word != "-") continue;
    std::string type;
    std::string options;
    if (!(words >> type >> word >> options)) continue;
    const bool found = hierarchy.version == CgroupVersion::first
                           ? type == "cgroup" && lists(options, hierarchy.controller)
                           : type == "cgroup2";
    if (found) return mount;
  }
  return std::nullopt;
}

// "/user.slice/job": the folder of this process in the hierarchy.
std::optional<std::string> find_own_folder(const Hierarchy& hierarchy, const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    // "4:memory:/job" or "0::/job".
    std::string_view rest = line;
    take_word(rest, ':');
    const std::string_view controllers = take_word(rest, ':');
    const bool found = hierarchy.version == CgroupVersion::first
                           ? lists(controllers, hierarchy.controller)
                           : line.starts_with("0::");
    if (found) return std::string(rest);
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> cgroup_folders(CgroupVersion version, std::string_view controller,
                                        const std::string& root) {
  const Hierarchy hierarchy{version, controller};
  const std::optional<Mount> mount = find_mount(hierarchy, root);
  std::optional<std::string> own = find_own_folder(hierarchy, root);
  if (!mount || !own) return {};
  // A container may see its folder under a name that is not mounted: "/..", or the name on the
  // host. Then the visible limit is that of the mounted folder.
  const std::string top = mount->top == "/" ? "" : mount->top;
  const bool visible = (*own + '/').starts_with(top + '/') && own->find("/..") == std::string::npos;
  own->erase(0, visible ? top.size() : own->size());
  std::vector<std::string> folders;
  while (own->size() > 1) {
    folders.push_back(mount->point + *own);
    own->erase(own->rfind('/'));
  }
  folders.push_back(mount->point);
  return folders;
}

}  // namespace stretto
