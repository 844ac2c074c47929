// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>
#include <span>
#include <type_traits>

#include "stretto/base/rank_vector.h"
#include "stretto/communicator/communicator.h"

namespace stretto::communicator {

// Returns every rank's `own`, by rank. Collective; blocks. The bytes of `own` travel unchanged.
// Throws like an all_gather.
template <class T>
RankVector<T> all_gather_value(Communicator& comm, const T& own,
                               const std::optional<Duration>& timeout) {
  static_assert(std::is_trivially_copyable_v<T>);
  RankVector<T> all(comm.size());
  comm.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)),
                  {.timeout = timeout})
      .wait();
  return all;
}

}  // namespace stretto::communicator
