// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "stretto/base/single_copy.h"
#include "stretto/communicator/communicator.h"
#include "stretto/group/progress_thread.h"

namespace stretto {

struct ThreadRanksOptions {
  int size = 1;
  // If false, ranks reach each other by messages only, as on different hosts.
  bool shared_memory = true;
  // Whether private buffers go from rank to rank by one copy instead of two; see
  // STRETTO_SINGLE_COPY in docs/environment.md.
  SingleCopy single_copy = SingleCopy::automatic;
  ProgressThread progress_thread = ProgressThread::automatic;
  Duration timeout = std::chrono::minutes(30);
  // Used for every collective that has this algorithm, instead of the chosen one.
  std::string algorithm = {};
  // For each rank, the number of the host that it counts as running on. Two-level algorithms go by
  // it, and only ranks of one host share memory. Empty: all on one host.
  std::vector<std::int32_t> hosts = {};
  // The size of a segment of a chunk; 0: chosen by the library. Results do not depend on it.
  std::size_t segment_bytes = 0;
};

// Makes a job whose ranks are threads of this process: communicator r is for the thread of rank r.
// Use it to write tests; nothing has to be launched. Blocks until done. Throws InvalidArgument if
// `size` is not positive, `hosts` has neither 0 nor `size` entries, no algorithm is called
// `algorithm`, or `timeout` is negative; SystemError if a thread cannot be started.
std::vector<std::unique_ptr<Communicator>> make_thread_ranks(const ThreadRanksOptions& options);

}  // namespace stretto
