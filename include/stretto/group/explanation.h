// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stretto {

// Why a communicator runs an operation the way it does.
struct Explanation {
  std::string algorithm = {};  // With private buffers.
  std::string algorithm_registered = {};
  std::string algorithm_huge_pages = {};  // With private buffers in huge pages.
  std::string reason = {};                // A sentence.
  std::size_t segment_bytes = 0;
  std::size_t segments = 0;
  std::size_t lanes = 0;  // Segments under way at a time; 0 where memory is shared.
  // The algorithms by messages among which it chose and the seconds that the model predicts for
  // each, the chosen one first, and then those that run only if they are asked for. Empty where
  // memory is shared, since there is no choice.
  struct Candidate {
    std::string algorithm;
    double seconds = 0;
  };
  std::vector<Candidate> candidates = {};
  std::string links = {};  // The numbers that the model goes by, and where they come from.
  // Collectives of the group, of any kind, that have run on this rank so far without taking a lock.
  std::uint64_t lock_free_runs = 0;
};

}  // namespace stretto
