// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/view.h"
#include "stretto/communicator/communicator.h"

namespace stretto::reducer {

// Makes one rank's bytes everyone's, for state that lies scattered in memory: many small tensors
// travel as few large messages, through registered memory that is kept for the next time.
class StateBroadcast {
 public:
  // `timeout` is that of each message; default: the communicator's. `staging_bytes` bounds the
  // memory, and one message. `communicator` must outlive this.
  explicit StateBroadcast(Communicator& communicator,
                          std::optional<Duration> timeout = std::nullopt,
                          std::size_t staging_bytes = std::size_t{32} << 20)
      : communicator_(communicator), timeout_(timeout), staging_bytes_(staging_bytes) {}

  // Overwrites `parts` with those of `root`. Collective, blocks; lengths must be equal on all
  // ranks. Throws what Communicator::broadcast throws; then some parts may have been overwritten.
  void run(std::span<const ByteSpan> parts, Rank root = 0);

 private:
  Communicator& communicator_;
  std::optional<Duration> timeout_;
  std::size_t staging_bytes_;
  Memory staging_;
};

}  // namespace stretto::reducer
