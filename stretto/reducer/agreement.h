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

// Where a hook goes on: what all ranks choose their messages by.
struct ResumePoint {
  std::uint64_t step = 0;     // That follows.
  float announced_bytes = 0;  // By all ranks, in the step before: see CompressedReduction.
};

// Runs `take_over`, which takes over what this rank has loaded and returns where it goes on.
// Throws Mismatch, on all ranks, unless all name the same hook. Returns the greatest of all ranks,
// of each number: those that have survived a failure may have begun or ended another number of
// steps, and who joins them has seen none. What `take_over` throws on one rank is thrown there, and
// InvalidArgument, which names the rank, on the others: they would wait for its messages.
// Collective, blocks: one small operation, if all is well.
ResumePoint take_over_together(Communicator& communicator, const std::string& name,
                               const std::function<ResumePoint()>& take_over,
                               const std::optional<Duration>& timeout);

// Throws Mismatch, on all ranks, unless all name the same hook; before anything of it changes.
// Collective, blocks: one small operation.
void check_same_hook(Communicator& communicator, const std::string& name,
                     const std::optional<Duration>& timeout);

// Throws InvalidArgument: another hook has made `dtype` of what the hook `name` was told of.
[[noreturn]] void refuse_converted(const std::string& name, DType dtype);

// For what `rank` has sent, and only this rank may have seen: throws what `code` says, after an
// abort, since the others go on, and must not wait for this rank.
template <class... Args>
void abort_and_throw(Communicator& communicator, StatusCode code, std::size_t rank,
                     fmt::format_string<Args...> text, Args&&... args) {
  const Status status(code, fmt::format(text, std::forward<Args>(args)...), static_cast<int>(rank));
  communicator.abort(std::string(status.message()));
  status.or_throw();
}

}  // namespace stretto::reducer
