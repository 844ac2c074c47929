// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "stretto/base/id.h"
#include "stretto/base/status.h"

namespace stretto {

// How much memory this process can still have before the kernel ends it without a word.
struct MemoryLeft {
  std::size_t left_bytes = 0;
  std::size_t limit_bytes = 0;  // What could be had if nobody used any.
  std::string source = {};      // The file that sets the limit.
};

// The tightest of what the machine has available and of what the limits of this process' cgroup and
// of all its parents leave (versions 1 and 2). What the kernel takes back before it ends anybody,
// the page cache and what it can swap out, counts as left. Nothing if no file says anything.
//
// `promised_bytes`: shared memory that has been given out. Such memory is paid for when it is
// touched; as much of it as cannot have been touched yet is not left.
//
// `root` goes before every path that is read, for tests. Reads a dozen small files; any thread.
std::optional<MemoryLeft> find_memory_left(std::size_t promised_bytes = 0,
                                           const std::string& root = {});

// out_of_memory if `bytes` more are more than is left, in a sentence that says whose limit it is.
Status check_memory_left(Rank rank, std::size_t bytes, const std::optional<MemoryLeft>& left);

}  // namespace stretto
