// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/c10d/flight_recorder.h"

#include <algorithm>
#include <string>

#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "stretto/base/error.h"
#include "stretto/base/log.h"
#include "stretto/c10d/torch_version.h"

namespace stretto::c10d_backend {

communicator::FlightEntries& flight_entries() {
  static auto* const entries = new communicator::FlightEntries(  // Operations outlive statics.
      static_cast<std::size_t>(std::max(
          0, ::c10d::getCvarInt({"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}, 2000))),
      kRecordedLibrary);
  return *entries;
}

communicator::FlightTensors flight_tensors(at::TensorList tensors) {
  communicator::FlightTensors list;
  for (const at::Tensor& tensor : tensors) {
    list.add(c10::toString(tensor.scalar_type()), {tensor.sizes().data(), tensor.sizes().size()});
  }
  return list;
}

void dump_flight_record(int job_rank) {
  const std::string name = ::c10d::getCvarString({"TORCH_FR_DUMP_TEMP_FILE"}, "");
  if (name.empty() || flight_entries().capacity() == 0) return;
  // PyTorch's own writer would keep the first name for ever, and this process may become another
  // rank.
  try {
    flight_entries().write(name + std::to_string(job_rank));
  } catch (const Error& error) {
    log(LogLevel::error, "the flight record is lost: {}", error.what());
  }
}

}  // namespace stretto::c10d_backend
