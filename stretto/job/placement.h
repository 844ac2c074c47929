// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace stretto::job {

// Advice for a job whose ranks are numbered across hosts, so that no host can combine its ranks'
// data before it sends them; empty if there is no such problem. `hosts`: the host of each rank;
// hosts are numbered in the order in which they first appear. `backend`: runs the collectives; MPI
// and NCCL have orders of their own.
std::string_view placement_advice(std::span<const std::int32_t> hosts, std::string_view backend);

}  // namespace stretto::job
