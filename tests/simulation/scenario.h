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

// What may be drawn.
struct ScenarioOptions {
  int ranks = 1;
  // Only what a single wrong bit in flight makes wrong somewhere: sums of integers, and moves.
  bool sensitive = false;
  // Of a kind that takes longer than a segment, now and then.
  bool large = true;
};

// One operation that all ranks do together, with the buffers of all of them and what they should
// hold afterwards. Keeps its address from begin() to the end of the operation.
class Scenario {
 public:
  // Draws collective, algorithm, counts, type and content.
  static std::unique_ptr<Scenario> draw(Random& random, const ScenarioOptions& options);
  virtual ~Scenario() = default;

  // Submits the operation on a rank.
  virtual Work begin(Communicator& comm) = 0;
  // What is wrong with the result on a rank; empty: nothing. Valid when the operation has ended.
  virtual std::string check(int rank) const = 0;
  // "all_gather(f32 [1024]) by ring, in place".
  virtual std::string describe() const = 0;
};

}  // namespace stretto::simulation
