// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <span>

#include "stretto/base/status.h"
#include "stretto/schedule/algorithms.h"

namespace stretto::schedule {

// Which schedules a running program proves before it uses them: STRETTO_VERIFY.
enum class Verification : std::uint8_t {
  never,
  automatic,  // Those that no test has proved, for up to kProvedRanksMax ranks.
  always,     // All of them, however long it takes.
};

// Time and memory of a proof grow with the third power of the ranks. For so many ranks it takes a
// tenth of a second or a few, once; for an all_to_all, which has as many chunks as ranks have
// ranks, half as many do.
inline constexpr std::int32_t kProvedRanksMax = 128;

// Whether the tests prove the algorithm for this number of ranks and this root: up to 64 ranks
// (all_to_all: 32) with root 0, up to 17 with any. One that goes by hosts, on several: up to 32
// ranks with root 0, equally many on each host, in the order of hosts.
bool is_proved_by_tests(const Algorithm& algorithm, const Shape& shape);

// Proves that the schedules of all ranks together are the collective (verify()), if that is wanted.
// What has been proved once in this process is not proved again. Blocks for as long as it takes.
// Any thread. `processors`, of mapped algorithms: as in build_for_processors(), whose schedules are
// proved instead where ranks share some, also if tests prove the algorithm.
//
// Fails with `internal` if a schedule is wrong, and says which algorithm, how many ranks, which
// step or chunk: it must not run. Where there are too many ranks for `automatic`, rank 0 logs a
// warning once for each algorithm, and it does not fail.
Status prove(const Algorithm& algorithm, const Shape& shape, Verification wanted,
             std::span<const std::int32_t> processors = {});

}  // namespace stretto::schedule
