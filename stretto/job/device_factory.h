// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "stretto/base/environment.h"
#include "stretto/base/status.h"
#include "stretto/communicator/scheduled_backend.h"

namespace stretto::job {

// Selects this process's device among those that it sees.
struct OwnDevice {
  // Empty: STRETTO_DEVICE says it. If that is not set, the ranks of a host take its devices by
  // turns.
  std::optional<int> number = std::nullopt;
  // The number of the rank among those of its host, for the turns. Empty: as the job counts its
  // ranks.
  std::optional<int> local_rank = std::nullopt;
};

// Makes NCCL's libraries for the backend "nccl" of a job. Loads NCCL and the driver of the devices
// now, and fails with invalid_argument if one of them is missing, or if there is no device. Reads
// STRETTO_NCCL_LIBRARY (nccl/load.h) and STRETTO_DEVICE.
Result<communicator::LibraryFactory> nccl_factory(const Environment& environment,
                                                  const OwnDevice& own = {});

// Opens the device of a rank, for the backend "cuda". `local_rank`: its number among the ranks of
// its host. device_opener() loads the driver and our kernels (cuda/load_kernels.h) now, and fails
// as nccl_factory() does. The returned function fails with invalid_argument if the kernels do not
// run on the device. Reads STRETTO_DEVICE.
using OpenDevice = std::function<Result<std::shared_ptr<execution::SharedDevice>>(int local_rank)>;
Result<OpenDevice> device_opener(const Environment& environment, const OwnDevice& own = {});

}  // namespace stretto::job
