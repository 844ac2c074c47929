// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "stretto/base/clock.h"
#include "stretto/reducer/reducer.h"

namespace stretto {

// Describes a DistributedDataParallel and the cost of its steps, with the keys and units of
// PyTorch's _get_ddp_logging_data(), for tools that read them: sizes are bytes, durations
// nanoseconds, points in time nanoseconds since 1970; indices are those of trained_parameters().
// Averages are over all steps (PyTorch samples some). Keys about steps exist after the first step.
// "can_set_static_graph" exists after the second: whether on all ranks each step has accumulated
// into each parameter as often as the first one, not counting passes inside no_sync(). The
// environment variables of other backends are left out.
struct LoggingData {
  std::map<std::string, std::string> strs_map;
  std::map<std::string, std::int64_t> ints_map;
};

namespace ddp {

// Measures the parts of steps and adds up their times.
class StepTimer {
 public:
  void forward_begins() { forward_begin_ = Clock::now(); }
  void forward_ends() { forward_end_ = Clock::now(); }
  // Adds a step that has been reduced, and writes the time of its forward pass into it.
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
