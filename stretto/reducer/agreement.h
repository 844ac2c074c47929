// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "stretto/communicator/communicator.h"

namespace stretto::reducer {

// Where a hook goes on; all ranks must choose their messages by the same values.
struct ResumePoint {
  std::uint64_t step = 0;     // The next one.
  float announced_bytes = 0;  // By all ranks in the step before, see CompressedReduction.
};

// Runs `take_over`, which takes over the state that this rank has loaded and returns where it goes
// on. Returns the maximum over all ranks of each number: after a failure the survivors may have
// counted different steps, and new ranks have counted none. Throws Mismatch on all ranks unless all
// name the same hook. If `take_over` throws on a rank, that rank throws the same, and the others
// throw InvalidArgument, which names the rank: they must not wait for its messages. Collective,
// blocks: one small operation, if all is well.
ResumePoint take_over_together(Communicator& communicator, const std::string& name,
                               const std::function<ResumePoint()>& take_over,
                               const std::optional<Duration>& timeout);

// Throws Mismatch on all ranks unless all name the same hook; to be called before the hook changes
// anything. Collective, blocks: one small operation.
void check_same_hook(Communicator& communicator, const std::string& name,
                     const std::optional<Duration>& timeout);

// Throws InvalidArgument: another hook has converted gradients of the hook `name` to `dtype`.
[[noreturn]] void refuse_converted(const std::string& name, DType dtype);

// The number in the job of the communicator's rank `rank`, which is an index of gathered values.
// Errors name ranks by it.
inline std::size_t job_rank(const Communicator& communicator, std::size_t rank) {
  return static_cast<std::size_t>(communicator.job_rank(static_cast<int>(rank)));
}

// For a failure in what a rank has sent, which perhaps only this rank has seen: aborts, since the
// other ranks go on and must not wait for this one, and throws the exception for `code`. `rank` is
// that rank's number in the job.
template <class... Args>
void abort_and_throw(Communicator& communicator, StatusCode code, std::size_t rank,
                     fmt::format_string<Args...> text, Args&&... args) {
  const Status status(code, fmt::format(text, std::forward<Args>(args)...), static_cast<int>(rank));
  communicator.abort(std::string(status.message()));
  status.or_throw();
}

}  // namespace stretto::reducer
