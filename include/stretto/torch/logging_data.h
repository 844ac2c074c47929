// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "stretto/base/clock.h"
#include "stretto/reducer/reducer.h"

namespace stretto {

// What a DistributedDataParallel is and what its steps cost, in the keys and units of PyTorch's
// _get_ddp_logging_data(), for tools that read those: sizes are bytes, durations nanoseconds,
// points in time nanoseconds since 1970; indices are those of trained_parameters(). Averages are
// over all steps (PyTorch samples some). Keys about the first step are there after it, and after
// the second "can_set_static_graph": whether on all ranks each step has used what the first one
// did, as often, without inner passes of no_sync(). Left out are the environment variables of other
// backends.
struct LoggingData {
  std::map<std::string, std::string> strs_map;
  std::map<std::string, std::int64_t> ints_map;
};

namespace ddp {

// Adds up what the parts of steps take.
class StepTimer {
 public:
  void forward_begins() { forward_begin_ = Clock::now(); }
  void forward_ends() { forward_end_ = Clock::now(); }
  // A step that has been reduced: adds it, and writes the forward pass into it.
  void add(StepStatistics& step);
  void describe(LoggingData& data) const;

 private:
  struct Times {
    Duration forward{};
    Duration backward_compute{};
    Duration backward_comm{};
    Duration overlap{};
  };

  TimePoint forward_begin_;
  TimePoint forward_end_;
  TimePoint compute_end_;
  TimePoint comm_begin_;
  TimePoint comm_end_;
  Times last_;
  Times sum_;
  std::int64_t steps_ = 0;
};

}  // namespace ddp
}  // namespace stretto
