// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

// Where ranks lie: the number of each rank's host.
namespace stretto::testing {

using Hosts = std::vector<std::int32_t>;

// As many ranks in a row on each host; the last host has those that are left.
inline Hosts equal_hosts(int ranks, int each) {
  Hosts hosts;
  for (int rank = 0; rank < ranks; ++rank) hosts.push_back(rank / each);
  return hosts;
}

inline Hosts hosts_in_turns(int ranks, int host_count) {
  Hosts hosts;
  for (int rank = 0; rank < ranks; ++rank) hosts.push_back(rank % host_count);
  return hosts;
}

// Hosts of any size. They are numbered in the order in which they first appear.
inline Hosts random_hosts(int ranks, std::mt19937& random, bool in_a_row) {
  const std::size_t most = 1 + random() % static_cast<std::size_t>(ranks);
  std::vector<std::size_t> drawn(static_cast<std::size_t>(ranks));
  for (std::size_t& host : drawn) host = random() % most;
  if (in_a_row) std::ranges::sort(drawn);
  Hosts numbers(most, -1), hosts;
  std::int32_t count = 0;
  for (const std::size_t host : drawn) {
    if (numbers[host] < 0) numbers[host] = count++;
    hosts.push_back(numbers[host]);
  }
  return hosts;
}

}  // namespace stretto::testing
