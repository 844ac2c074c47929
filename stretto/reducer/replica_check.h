// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/communicator/communicator.h"

namespace stretto::reducer {

// What must be equal on all ranks about one tensor or one setting, as text for an error message.
struct ReplicaItem {
  std::string kind;  // "parameter", "buffer", "option".
  std::string name;
  // Facts in a fixed order: {"shape", "[10, 64]"}, {"dtype", "f32"}.
  std::vector<std::pair<std::string, std::string>> facts;
};

// Throws Mismatch, on all ranks and with the same sentence, unless all ranks pass equal lists; the
// sentence says which item differs, on which ranks, and how. Collective: blocks until all ranks
// have called. If lists are equal, only 8 bytes per rank are sent. `timeout` bounds each operation;
// default: the communicator's.
void check_replicas_described_alike(Communicator& communicator,
                                    const std::vector<ReplicaItem>& items,
                                    const std::optional<Duration>& timeout = std::nullopt);

// Throws Mismatch, on all ranks and with the same sentence, unless hashes[i] is the same on all
// ranks for each i; names[i] is what the sentence calls it. Where ranks have lists of different
// lengths, the sentence says how many parameters each has. Collective; `timeout` as above.
void check_replicas_hash_alike(Communicator& communicator, const std::vector<std::string>& names,
                               std::span<const std::uint64_t> hashes,
                               const std::optional<Duration>& timeout = std::nullopt);

}  // namespace stretto::reducer
