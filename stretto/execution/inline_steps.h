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

// Carries out the steps of a plan for so few bytes that its scratch is in the posts: what
// LocalSteps does, but with every place found beforehand, because here a nanosecond is worth as
// much as a byte.
class InlineSteps {
 public:
  // Nothing if the scratch of the plan cannot be in the posts; then it is so on all ranks. The
  // windows must outlive this.
  static std::optional<InlineSteps> create(const Plan& plan, const Windows& windows);

  // The steps before the sync, in the post that says that this rank has entered.
  void run_before_sync(const Call& call) { run(call, 0, sync_); }
  // Those behind it.
  void run_after_sync(const Call& call) { run(call, sync_, moves_.size()); }

 private:
  // Where something lies: so many bytes behind a base. Bases are the caller's input and output, and
  // the bytes in everybody's post.
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
    int reduction = -1;  // Of reductions_; none: a copy.
  };

  explicit InlineSteps(const Windows& windows);
  Status add(const Plan& plan, const schedule::Step& step);
  Status add_reduction(const Plan& plan, const schedule::Step& step);
  void run(const Call& call, std::size_t first, std::size_t last);

  const Windows* windows_;
  std::vector<Move> moves_;
  std::vector<Operand> operands_;
  std::size_t sync_ = 0;  // The moves before it.
  std::vector<kernel::PreparedReduction> reductions_;
  std::vector<kernel::Input> inputs_;  // Of one reduction.
  // As posts, in turn; of the callers' buffers those of this run.
  std::array<std::vector<std::byte*>, 2> bases_;
};

}  // namespace stretto::execution
