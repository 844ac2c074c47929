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

// Which of the devices that this process sees is its own.
struct OwnDevice {
  // Nothing: what STRETTO_DEVICE says; without that, the ranks of a host take them in their order,
  // by turns.
  std::optional<int> number = std::nullopt;
  std::optional<int> local_rank = std::nullopt;  // Whose turn it is; nothing: by the job's ranks.
};

// NCCL, for the backend "nccl" of a job. Loads it now, and the driver of the devices: fails with
// invalid_argument if one of them is not there. Reads STRETTO_NCCL_LIBRARY (nccl/load.h) and
// STRETTO_DEVICE.
Result<communicator::LibraryFactory> nccl_factory(const Environment& environment,
                                                  const OwnDevice& own = {});

// The device of a rank, for the backend "cuda": with the number of the rank among those of its
// host. Loads the driver now, and our kernels (cuda/load_kernels.h): fails as nccl_factory() does.
// What is returned fails so where these do not run on the device. Reads STRETTO_DEVICE likewise.
using OpenDevice = std::function<Result<std::shared_ptr<execution::SharedDevice>>(int local_rank)>;
Result<OpenDevice> device_opener(const Environment& environment, const OwnDevice& own = {});

}  // namespace stretto::job
