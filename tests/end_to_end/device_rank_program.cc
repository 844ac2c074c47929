// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// device_rank_program right: runs collectives on memory of devices and of the host, and prints
// "right" on every rank, or what differs.
// device_rank_program late: the kernel of rank 0 is late, and rank 1 dies meanwhile. The others
// print how their operation has failed; rank 0 prints whether that was before its kernel had ended.

#include <signal.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "stretto/base/error.h"
#include "stretto/job/join.h"
#include "tests/end_to_end/rank_program.h"
#include "tests/support/device_trial.h"
#include "tests/support/double_ranks.h"

namespace {

using namespace stretto;           // NOLINT: a test's program.
using namespace stretto::testing;  // NOLINT: what tests/support gives to tests.

void hold_kernels(bool wanted) {
  Double::get().change([&](auto& control) { control.holds_kernels = wanted; });
}

// Returns whether the work has ended, well or not, within `time`.
bool has_ended_within(Work& work, Duration time) {
  try {
    work.wait_for(time);
  } catch (const Error&) {
    return work.done();
  }
  return true;
}

void be_late(Communicator& ranks) {
  const auto data = ranks.allocate<float>(1000, ranks.device());
  ranks.barrier().wait();
  hold_kernels(ranks.rank() == 0);
  Work work = ranks.all_reduce(data.span());
  if (ranks.rank() == 1) {
    (void)has_ended_within(work, std::chrono::milliseconds(300));
    ::raise(SIGKILL);
  }
  if (ranks.rank() == 0) {
    const bool was_early = has_ended_within(work, std::chrono::milliseconds(1000));
    std::printf("%s\n", was_early ? "early" : "waits for its kernel");
    hold_kernels(false);
  }
  std::printf("failed %s\n", std::string(work.wait_status().message()).c_str());
}

}  // namespace

int main(int, char** arguments) {
  return run_or_explain([&] {
    const auto ranks =
        join({.join_timeout = std::chrono::seconds(20), .timeout = std::chrono::seconds(20)});
    if (std::string_view(arguments[1]) == "late") return be_late(*ranks);
    const std::string difference = difference_on_device(*ranks, Double::file());
    std::printf("%s\n", difference.empty() ? "right" : difference.c_str());
  });
}
