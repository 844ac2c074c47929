// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/placement.h"

#include <algorithm>
#include <cstddef>

namespace stretto::job {

std::string_view placement_advice(std::span<const std::int32_t> hosts, std::string_view backend) {
  if (std::ranges::is_sorted(hosts) || backend == "mpi" || backend == "nccl") return {};
  // The canonical tree first combines such pairs of neighbours.
  for (std::size_t rank = 1; rank < hosts.size(); rank += 2) {
    if (hosts[rank - 1] == hosts[rank]) return {};
  }
  return "ranks are numbered across hosts, so a reduction sends every rank's data to other hosts: "
         "number ranks host by host, as with mpirun --map-by slot or srun --distribution=block";
}

}  // namespace stretto::job
