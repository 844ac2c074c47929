// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "stretto/base/mutex.h"

namespace stretto::c10d_backend {

// A group as PyTorch's records name it.
struct FlightGroup {
  std::size_t number = 0;  // Of this process: its groups are counted.
  std::string name;
  std::string description;
  std::vector<uint64_t> ranks;  // Their numbers in the job.
};

// The sizes and types of an operation's tensors, without the tensors. Of few, it allocates nothing.
struct TensorShapes {
  TensorShapes() = default;
  explicit TensorShapes(at::TensorList list);

  c10::SmallVector<std::pair<at::ScalarType, int32_t>, 2> tensors;  // Types and dimensions.
  c10::SmallVector<int64_t, 4> sizes;                               // Of all, one after the other.
};

// One operation.
struct FlightEntry {
  enum class State : int { started, completed, failed };

  static int64_t now_ns();
  void end(bool well);

  ::c10d::OpType type = ::c10d::OpType::UNKNOWN;
  int rank = 0;
  int peer = -1;  // Of a send or receive; -1: any.
  uint64_t collective_number = 0;
  uint64_t point_to_point_number = 0;
  TensorShapes inputs;
  TensorShapes outputs;
  std::chrono::milliseconds timeout{0};
  std::shared_ptr<const FlightGroup> group;

  uint64_t record_number = 0;  // Counted from 1.
  int64_t created_ns = now_ns();
  int64_t ended_ns = 0;
  State state = State::started;
};

// The last operations of all groups of this process, in the fields and the pickled form of
// PyTorch's flight recorder, so that its torchfrtrace compares the records of all ranks. As there,
// TORCH_FR_BUFFER_SIZE says how many are kept: 2000, and none with 0. Any thread.
class FlightRecorder {
 public:
  static FlightRecorder& instance();

  // Returns the number by which end() knows the entry, as long as it is kept; 0: it is not.
  uint64_t record(FlightEntry entry);
  void end(uint64_t record_number, bool well);
  // A pickled dictionary.
  std::string dump() const;
  // Writes it as the process `job_rank`'s to where TORCH_FR_DUMP_TEMP_FILE says, with that number
  // behind the name. Without this variable nothing is written.
  void dump_to_file(int job_rank) const;

 private:
  FlightRecorder();

  const std::size_t capacity_;
  mutable Mutex mutex_;
  // Entries lie here, one after the other: what is allocated for each would be touched anew when it
  // is overwritten, after thousands of others.
  std::vector<FlightEntry> ring_ STRETTO_GUARDED_BY(mutex_);
  uint64_t recorded_ STRETTO_GUARDED_BY(mutex_) = 0;
};

}  // namespace stretto::c10d_backend
