// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stretto/base/random.h"
#include "stretto/communicator/communicator.h"
#include "tests/support/bytes.h"

namespace stretto::simulation {

// What a scenario may be drawn from.
struct ScenarioOptions {
  int ranks = 1;
  // Only operations that one wrong bit in flight makes wrong somewhere: sums of integers, and
  // moves.
  bool sensitive = false;
  // Also, now and then, an operation that is longer than a segment.
  bool large = true;
};

// One operation that all ranks run together, with all their buffers and the values that these
// should hold afterwards. Must keep its address from begin() to the end of the operation.
class Scenario {
 public:
  // Draws collective, algorithm, counts, type and content.
  static std::unique_ptr<Scenario> draw(Random& random, const ScenarioOptions& options);
  virtual ~Scenario() = default;

  // Submits the operation on a rank.
  virtual Work begin(Communicator& comm) = 0;
  // What is wrong with the result on a rank; empty if nothing is. Valid when the operation has
  // ended.
  virtual std::string check(int rank) const = 0;
  // Such as "all_gather(f32 [1024]) by ring, in place".
  virtual std::string describe() const = 0;
};

}  // namespace stretto::simulation
