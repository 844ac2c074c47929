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

const char* flight_name(::c10d::OpType type) {
  using ::c10d::OpType;
  switch (type) {
    case OpType::BROADCAST:
      return "broadcast";
    case OpType::ALLREDUCE_COALESCED:
      return "allreduce_coalesced";
    case OpType::REDUCE:
      return "reduce";
    case OpType::ALLGATHER:
      return "all_gather";
    case OpType::_ALLGATHER_BASE:
      return "_all_gather_base";
    case OpType::ALLGATHER_COALESCED:
      return "ALLGATHER_coalesced";
    case OpType::COALESCED:
      return "all_gather_into_tensor_coalesced";
    case OpType::GATHER:
      return "gather";
    case OpType::SCATTER:
      return "scatter";
    case OpType::REDUCE_SCATTER:
      return "reduce_scatter";
    case OpType::_REDUCE_SCATTER_BASE:
      return "_reduce_scatter_base";
    case kReduceScatterTensorCoalesced:
      return "reduce_scatter_tensor_coalesced";
    case OpType::ALLTOALL:
    case OpType::ALLTOALL_BASE:
      return "all_to_all";
    case OpType::SEND:
      return "send";
    case OpType::RECV:
    case OpType::RECVANYSOURCE:
      return "recv";
    case OpType::BARRIER:
      return "barrier";
    default:
      return "all_reduce";
  }
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
