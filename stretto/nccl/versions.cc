// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/nccl/versions.h"

#include <fmt/format.h>

namespace stretto::nccl {

static_assert(offsetof(Config, comm_name) == 48 && sizeof(Config) == 72,
              "as ncclConfig_t lies in memory");

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

Status check_version(int version) {
  if (version >= kOldestVersion) return {};
  return status_of(StatusCode::invalid_argument,
                   "NCCL {} is older than {}, the first whose communicators are safe to use from "
                   "several threads; STRETTO_NCCL_LIBRARY names the file of another one",
                   version_text(version), version_text(kOldestVersion));
}

}  // namespace stretto::nccl
