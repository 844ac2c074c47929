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
  // Without it, ranks reach each other by messages only, as they would on different hosts.
  bool shared_memory = true;
  // Whether private buffers go from rank to rank by one copy instead of two; see
  // STRETTO_SINGLE_COPY in docs/environment.md.
  SingleCopy single_copy = SingleCopy::automatic;
  ProgressThread progress_thread = ProgressThread::automatic;
  Duration timeout = std::chrono::minutes(30);
  // Instead of the chosen algorithm, wherever it exists.
  std::string algorithm = {};
  // Per rank, a number of the host it is taken to be on: what two-level algorithms go by, and with
  // whom it shares memory. Empty: all on one.
  std::vector<std::int32_t> hosts = {};
  // Bytes of a chunk that travel at a time; 0: chosen. Results do not depend on it.
  std::size_t segment_bytes = 0;
};

// A job whose ranks are threads of this process: communicator r is for the thread of rank r. The
// thing to write tests with; nothing has to be launched. Blocks until done. Throws InvalidArgument
// if `size` is not positive, or there are not as many `hosts`; SystemError if a thread cannot be
// started.
std::vector<std::unique_ptr<Communicator>> make_thread_ranks(const ThreadRanksOptions& options);

}  // namespace stretto
