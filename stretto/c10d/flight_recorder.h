// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <ATen/core/Tensor.h>

#include "stretto/communicator/flight_entries.h"

namespace stretto::c10d_backend {

// The last operations of all process groups of this process. As in PyTorch's own recorder,
// TORCH_FR_BUFFER_SIZE says how many are kept: 2000 by default, and none with 0.
communicator::FlightEntries& flight_entries();

communicator::FlightTensors flight_tensors(at::TensorList tensors);

// Writes the entries to the file that TORCH_FR_DUMP_TEMP_FILE names, with `job_rank`, the number of
// this process, behind the name. Without this variable nothing is written.
void dump_flight_record(int job_rank);

}  // namespace stretto::c10d_backend
