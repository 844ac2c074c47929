// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <string>

#include "stretto/base/status.h"

// All that differs between versions of NCCL.
namespace stretto::nccl {

// As ncclGetVersion() says it: 22007 is 2.20.7.
inline constexpr int kOldestVersion = 22000;

std::string version_text(int version);

// Fails with invalid_argument if it is older than what is known here. A later one is taken: NCCL
// keeps the interface that it had.
Status check_version(int version);

// ncclConfig_t as 2.27 and later know it, of which older versions read the beginning.
struct Config {
  static constexpr int kUndefined = -2147483647 - 1;

  std::size_t size_bytes = 0;
  unsigned magic = 0xcafebeef;
  unsigned version = 0;
  int blocking = 0;
  int cga_cluster_size = kUndefined;
  int ctas_min = kUndefined;
  int ctas_max = kUndefined;
  const char* network_name = nullptr;
  int split_share = kUndefined;
  int traffic_class = kUndefined;   // From 2.26 on, where it fills a gap.
  const char* comm_name = nullptr;  // This and the rest: from 2.27 on.
  int collnet_enable = kUndefined;
  int cta_policy = kUndefined;
  int shrink_share = kUndefined;
  int nvls_ctas = kUndefined;
};

// One for communicators that are made without blocking. `name` is shown by NCCL's tools where the
// version knows names; it must outlive the communicator.
Config make_config(int version, const char* name);

}  // namespace stretto::nccl
