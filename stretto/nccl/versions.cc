// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/nccl/versions.h"

#include <fmt/format.h>

namespace stretto::nccl {
namespace {

// The first whose communicators have names.
constexpr int kNamesVersion = 22700;

static_assert(offsetof(Config, comm_name) == 48 && sizeof(Config) == 72,
              "as ncclConfig_t lies in memory");

}  // namespace

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

Status check_version(int version) {
  if (version >= kOldestVersion) return {};
  return status_of(StatusCode::invalid_argument,
                   "NCCL {} is older than {}, the oldest that stretto knows; STRETTO_NCCL_LIBRARY "
                   "names the file of another one",
                   version_text(version), version_text(kOldestVersion));
}

// NCCL reads as many bytes as a configuration says it has, and takes defaults for the others.
Config make_config(int version, const char* name) {
  Config config{.size_bytes = offsetof(Config, comm_name), .version = kOldestVersion};
  if (version < kNamesVersion) return config;
  config.size_bytes = sizeof(Config);
  config.version = kNamesVersion;
  config.comm_name = name;
  return config;
}

}  // namespace stretto::nccl
