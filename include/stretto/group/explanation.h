// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stretto {

// Why a communicator runs an operation the way it does.
struct Explanation {
  std::string algorithm = {};  // For private buffers.
  std::string algorithm_registered = {};
  std::string algorithm_huge_pages = {};  // For private buffers in huge pages.
  std::string reason = {};                // A sentence.
  std::size_t segment_bytes = 0;
  std::size_t segments = 0;
  std::size_t lanes = 0;  // Segments in flight at a time; 0 where memory is shared.
  // The algorithms that use messages, with the seconds that the model predicts for each: first the
  // chosen one, then the others that could be chosen, then those that run only if they are named.
  // Empty where memory is shared, since there is no choice.
  struct Candidate {
    std::string algorithm;
    double seconds = 0;
  };
  std::vector<Candidate> candidates = {};
  std::string links = {};  // The numbers that the model uses, and their source.
  // Collectives of the group, of any kind, that have run on this rank so far without taking a lock.
  std::uint64_t lock_free_runs = 0;
};

}  // namespace stretto
