// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace stretto::job {

// What to do about ranks that are numbered across their hosts, so that no host can combine what its
// ranks have before it sends it. Empty: nothing. `hosts`: per rank, a number that is larger the
// later the host first appears. `backend`: whose collectives run; MPI and NCCL have orders of their
// own.
std::string_view placement_advice(std::span<const std::int32_t> hosts, std::string_view backend);

}  // namespace stretto::job
