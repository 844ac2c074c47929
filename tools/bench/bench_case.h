// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stretto/stretto.h"
#include "tools/bench/huge_memory.h"
#include "tools/bench/options.h"
#include "tools/bench/pattern.h"

namespace stretto::bench {

std::string buffers_name(Buffers buffers);

// What one line measures, on one rank: its buffers, and the operation on them as a user of the
// library would write it. Methods are collective where their comment says so.
class BenchCase {
 public:
  // `bytes` as in shape_of(). `comm` must outlive the case.
  BenchCase(Communicator& comm, const BenchOptions& options, Collective operation, Buffers buffers,
            std::size_t bytes);
  virtual ~BenchCase() = default;
  BenchCase(const BenchCase&) = delete;
  BenchCase& operator=(const BenchCase&) = delete;

  const Shape& shape() const { return shape_; }
  bool in_place() const { return in_place_; }
  Buffers buffers() const { return buffers_; }
  Collective operation() const { return operation_; }
  // The algorithm that runs; empty if the operation has none.
  std::string algorithm() const;

  // Rewrites this rank's input for the next iteration.
  void prepare();
  // Runs the operation and waits until it is done. Collective.
  void call();
  // Whether the last call gave this rank the right output. Call prepare() right before that call.
  virtual bool is_right() const;
  // Whether is_right() can check this operation.
  bool can_check() const;
  // For tests: damages this rank's output.
  void damage() const;

 private:
  bool is_root() const { return comm_.rank() == 0; }
  void send_and_return();

  Communicator& comm_;
  const BenchOptions& options_;
  Collective operation_;
  Buffers buffers_;
  Shape shape_;
  bool in_place_;
  Pattern pattern_;
  std::uint64_t iteration_ = 0;
  std::vector<Memory> registered_ = {};
  std::vector<std::vector<std::byte>> private_ = {};
  std::vector<std::shared_ptr<std::byte>> huge_ = {};
  View input_ = {};
  View output_ = {};
};

}  // namespace stretto::bench
