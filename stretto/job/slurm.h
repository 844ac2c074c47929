// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <string_view>

#include "stretto/base/environment.h"
#include "stretto/base/status.h"
#include "stretto/bootstrap/socket.h"

namespace stretto::job {

// Whether srun started this process. A batch script, and what it starts by itself, also have
// SLURM_PROCID and SLURM_NTASKS, but are no tasks.
bool in_slurm_step(const Environment& environment);

// The first host of a list in Slurm's notation: "node[07-09,12],login" begins with node07. Fails
// with invalid_argument if it is no such list.
Result<std::string> first_slurm_host(std::string_view list);

// A place that all tasks of this step can work out by themselves: the step's first host, where rank
// 0 runs unless srun was told otherwise, at a port computed from the numbers of job and step.
Result<bootstrap::HostPort> slurm_meeting_place(const Environment& environment);

}  // namespace stretto::job
