// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <span>

#include "stretto/base/status.h"
#include "stretto/schedule/algorithms.h"

namespace stretto::schedule {

// Which schedules a running program verifies before it uses them. STRETTO_VERIFY sets it.
enum class Verification : std::uint8_t {
  never,
  automatic,  // Those that no test proves, for up to kProvedRanksMax ranks.
  always,     // All schedules, however long it takes.
};

// Largest number of ranks for which Verification::automatic proves a schedule. Time and memory of a
// proof grow with the third power of the number of ranks; for 128 ranks a proof takes from a tenth
// of a second to a few tenths, once. For an all_to_all, which has a chunk for each pair of ranks,
// the limit is half as many ranks.
inline constexpr std::int32_t kProvedRanksMax = 128;

// Whether the tests prove the algorithm for this number of ranks and this root. They do so for up
// to 64 ranks (32 for all_to_all) with root 0, and for up to 17 ranks with any root. Algorithms
// that depend on hosts are proved on several hosts for up to 32 ranks (16 for all_to_all) with root
// 0, if every host has equally many ranks with consecutive numbers.
bool is_proved_by_tests(const Algorithm& algorithm, const Shape& shape);

// Verifies that the schedules of all ranks together are the collective (verify()), if `wanted` asks
// for it. A schedule that has been proved once in this process is not proved again. Blocks until
// the proof has ended. Any thread. `processors` is for mapped algorithms, as in
// build_for_processors(). If ranks share processors, the schedules of that function are proved,
// even if tests prove the algorithm itself.
//
// Fails with `internal` if a schedule is wrong; the message names the algorithm, the number of
// ranks and the step or chunk. The schedule must not run then. If there are too many ranks for
// `automatic`, the call succeeds without a proof, and rank 0 logs a warning once for each
// algorithm.
Status prove(const Algorithm& algorithm, const Shape& shape, Verification wanted,
             std::span<const std::int32_t> processors = {});

}  // namespace stretto::schedule
