// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/base/environment.h"
#include "stretto/base/status.h"
#include "stretto/communicator/scheduled_backend.h"

namespace stretto::job {

// NCCL, for the backend "nccl" of a job. Loads it now, and the driver of the devices: fails with
// invalid_argument if one of them is not there. Reads STRETTO_NCCL_LIBRARY (nccl/load.h) and
// STRETTO_DEVICE, the number of this process' device; without that, the ranks of a host take the
// devices that they see in their order.
Result<communicator::LibraryFactory> nccl_factory(const Environment& environment);

}  // namespace stretto::job
