// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "stretto/base/log.h"

namespace stretto {

void allow_descriptors(std::size_t count) {
  constexpr std::size_t kUsualLimit = 1024;
  rlimit limit{};
  if (count <= kUsualLimit || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t raised = std::min<rlim_t>(count, limit.rlim_max);
  if (raised <= limit.rlim_cur) return;
  const rlim_t before = std::exchange(limit.rlim_cur, raised);
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  log(LogLevel::info, "raised the limit on this process' descriptors from {} to {}", before,
      raised);
}

}  // namespace stretto
