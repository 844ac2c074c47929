// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "stretto/base/id.h"
#include "stretto/base/status.h"

namespace stretto {

// The memory that this process can still take before the kernel kills it without a message.
struct MemoryLeft {
  std::size_t left_bytes = 0;
  std::size_t limit_bytes = 0;  // What would be left if nobody used any.
  std::string source = {};      // The file that sets the limit.
};

// The smallest of the memory that is available on the machine and the memory that the limits of
// this process' cgroup and all its parents leave (versions 1 and 2). Memory that the kernel
// reclaims before it kills a process counts as left: the page cache, and what it can swap out.
// Empty if no file tells.
//
// `promised_bytes` is the size of shared memory that has been handed out. The kernel charges for it
// only when it is touched. The part of it that cannot have been touched yet does not count as left.
//
// `root` is a prefix of every path that is read, for tests. Reads a dozen small files; any thread.
std::optional<MemoryLeft> find_memory_left(std::size_t promised_bytes = 0,
                                           const std::string& root = {});

// Fails with out_of_memory if `bytes` exceed the memory left; the message names the limit.
Status check_memory_left(Rank rank, std::size_t bytes, const std::optional<MemoryLeft>& left);

}  // namespace stretto
