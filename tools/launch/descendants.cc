// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/descendants.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/parse_number.h"

namespace stretto::launch {
namespace {

// From /proc/PID/stat: "4711 (any name) S 4710 ...". -1 if it has ended meanwhile.
pid_t parent_of(pid_t pid) {
  const FileDescriptor file(
      ::open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 256> bytes;
  const ssize_t count = ::read(file.get(), bytes.data(), bytes.size());
  std::string_view text(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string_view::npos || name_end + 4 >= text.size()) return -1;
  text.remove_prefix(name_end + 4);
  return take_number<pid_t>(text).value_or(-1);
}

// The system keeps a list of them (/proc/PID/task/TID/children), but not every kernel shows it.
std::vector<pid_t> children() {
  std::vector<pid_t> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"), ::closedir);
  if (folder == nullptr) return found;
  while (const dirent* entry = ::readdir(folder.get())) {
    const pid_t pid = parse_number<pid_t>(entry->d_name).value_or(0);
    if (pid > 0 && parent_of(pid) == ::getpid()) found.push_back(pid);
  }
  return found;
}

}  // namespace

void kill_descendants() {
  // Killing a child makes its children ours. Looks again for as long as there are children; but one
  // that may not be killed, or is not to be seen, is not waited for for ever.
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    bool killed = false;
    for (const pid_t child : children()) killed = ::kill(child, SIGKILL) == 0 || killed;
    pid_t reaped = ::waitpid(-1, nullptr, killed ? 0 : WNOHANG);
    if (reaped < 0 && errno == ECHILD) return;
    if (killed) attempt = 0;
    while (reaped > 0) reaped = ::waitpid(-1, nullptr, WNOHANG);
    if (!killed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void reap_children_except(const std::vector<pid_t>& kept) {
  for (const pid_t child : children()) {
    const bool reap = std::find(kept.begin(), kept.end(), child) == kept.end();
    if (reap) ::waitpid(child, nullptr, WNOHANG);
  }
}

}  // namespace stretto::launch
