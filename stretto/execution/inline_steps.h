// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "stretto/execution/execution.h"
#include "stretto/execution/window.h"
#include "stretto/kernel/reduce.h"

namespace stretto::execution {

// Runs the steps of a plan for so few bytes that its scratch fits into the posts. Does what
// LocalSteps does, but finds every place beforehand, because here each nanosecond counts.
class InlineSteps {
 public:
  // Returns nothing if the scratch of the plan does not fit into the posts, which is so on all
  // ranks or on none. The windows must outlive this.
  static std::optional<InlineSteps> create(const Plan& plan, const Windows& windows);

  // Runs the steps before the sync, which write into the post by which this rank enters.
  void run_before_sync(const Call& call) { run(call, 0, sync_); }
  // Runs the steps after the sync.
  void run_after_sync(const Call& call) { run(call, sync_, moves_.size()); }

 private:
  // A place: `offset_bytes` behind a base. Bases are the caller's input and output, and the inline
  // bytes in each rank's post.
  struct Operand {
    std::uint32_t base = 0;
    std::uint32_t offset_bytes = 0;
  };
  static constexpr std::uint32_t kInput = 0;
  static constexpr std::uint32_t kOutput = 1;
  static constexpr std::uint32_t kPosts = 2;
  // A copy, or a reduction.
  struct Move {
    std::size_t first_source = 0;  // In operands_.
    std::size_t source_count = 0;
    Operand target;
    std::size_t bytes = 0;
    std::size_t count = 0;
    int reduction = -1;  // In reductions_; negative: a copy.
  };

  explicit InlineSteps(const Windows& windows);
  Status add(const Plan& plan, const schedule::Step& step);
  Status add_reduction(const Plan& plan, const schedule::Step& step);
  void run(const Call& call, std::size_t first, std::size_t last);

  const Windows* windows_;
  std::vector<Move> moves_;
  std::vector<Operand> operands_;
  std::size_t sync_ = 0;  // How many moves come before it.
  std::vector<kernel::PreparedReduction> reductions_;
  std::vector<kernel::Input> inputs_;  // Of one reduction.
  // One for each post of a window, used in turn. The callers' buffers are those of this run.
  std::array<std::vector<std::byte*>, 2> bases_;
};

}  // namespace stretto::execution
