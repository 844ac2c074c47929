// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Joins a job, adds up the ranks with the others, and prints "rank 1 of 4: sum 6". Variables change
// how it joins: TEST_FORBID has the system refuse "threads" or, with "memfd", unnamed files in
// memory; TEST_DESCRIPTORS is how many more descriptors there may be; TEST_JOIN_SECONDS is the
// limit for joining; with TEST_NO_SHARED_MEMORY it uses no shared memory.

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string_view>

#include "stretto/stretto.h"
#include "tests/support/forbid.h"
#include "tests/support/shortage.h"

int main() {
  const char* wish = std::getenv("TEST_FORBID");
  const std::string_view forbidden = wish == nullptr ? "" : wish;
  if (forbidden == "threads") stretto::testing::forbid({SYS_clone, SYS_clone3}, EAGAIN);
  if (forbidden == "memfd") stretto::testing::forbid({SYS_memfd_create}, ENOSYS);
  std::optional<stretto::testing::FewDescriptors> few;
  if (const char* left = std::getenv("TEST_DESCRIPTORS"))
    few.emplace(std::strtoul(left, nullptr, 10));
  const char* limit = std::getenv("TEST_JOIN_SECONDS");
  try {
    auto comm = stretto::join(
        {.join_timeout = std::chrono::seconds(limit == nullptr ? 20 : std::atoi(limit)),
         .disable_shared_memory = std::getenv("TEST_NO_SHARED_MEMORY") != nullptr});
    float sum[1] = {static_cast<float>(comm->rank().value())};
    comm->all_reduce(std::span<float>(sum)).wait();
    // Written at once, so that the lines of several ranks do not run into each other.
    char line[64];
    const int bytes = std::snprintf(line, sizeof(line), "rank %d of %d: sum %.0f\n",
                                    comm->rank().value(), comm->size(), sum[0]);
    (void)std::fwrite(line, 1, static_cast<std::size_t>(bytes), stdout);
    return 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "could not: %s\n", failure.what());
    return 1;
  }
}
