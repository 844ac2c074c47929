// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <string>

#include "stretto/base/status.h"

// What depends on the version of NCCL.
namespace stretto::nccl {

// As ncclGetVersion() says it: 22703 is 2.27.3. Before it, NCCL keeps what it is launching without
// blocking in memory of the thread that has called ncclGroupEnd(). Here one thread launches for
// several communicators, and another may go on with it.
inline constexpr int kOldestVersion = 22700;

std::string version_text(int version);

// Fails with invalid_argument if it is older. A later one is taken: NCCL keeps the interface that
// it had.
Status check_version(int version);

// ncclConfig_t as 2.27 knows it, for a communicator that is made without blocking. Later versions
// read as many bytes as it says it has, and take defaults for the others.
struct Config {
  static constexpr int kUndefined = -2147483647 - 1;

  std::size_t size_bytes = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = kOldestVersion;
  int blocking = 0;
  int cga_cluster_size = kUndefined;
  int ctas_min = kUndefined;
  int ctas_max = kUndefined;
  const char* network_name = nullptr;
  int split_share = kUndefined;
  int traffic_class = kUndefined;
  const char* comm_name = nullptr;  // NCCL's tools show it. It must outlive the communicator.
  int collnet_enable = kUndefined;
  int cta_policy = kUndefined;
  int shrink_share = kUndefined;
  int nvls_ctas = kUndefined;
};

}  // namespace stretto::nccl
