// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "stretto/communicator/communicator.h"

namespace stretto::reducer {

// Runs `take_over`, which takes over what this rank has loaded and returns the step that follows.
// Throws Mismatch, on all ranks, unless all name the same hook. Returns the greatest step of all
// ranks: those that have survived a failure may have begun another number of them. What
// `take_over` throws on one rank is thrown there, and InvalidArgument, which names the rank, on the
// others: they would wait for its messages. Collective, blocks: one small operation, if all is
// well.
std::uint64_t take_over_together(Communicator& communicator, const std::string& name,
                                 const std::function<std::uint64_t()>& take_over,
                                 const std::optional<Duration>& timeout);

// Throws InvalidArgument: the hook `name` is for f32, and another one has made `dtype` of it.
[[noreturn]] void refuse_converted(const std::string& name, DType dtype);

}  // namespace stretto::reducer
