// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>
#include <vector>

#include "stretto/base/status.h"
#include "stretto/base/view.h"
#include "stretto/execution/execution.h"
#include "stretto/execution/plan.h"
#include "stretto/execution/step.h"
#include "stretto/execution/window.h"
#include "stretto/kernel/reduce.h"
#include "stretto/transport/transport.h"

namespace stretto::execution {

// Carries out the steps of a plan on mapped memory although some of its places are not mapped: they
// lie in other ranks' private memory, from where and to where the kernel copies. So no byte passes
// through a region.
//
// A reduction goes a piece at a time: what others have is copied to scratch, reduced, and the
// result copied to the others while it is still in this core's cache. See docs/decisions/0007.
//
// Plan, membership, windows and transport must outlive it. One thread at a time, the one that runs
// the operation; the engine need not be held. Allocates nothing once made.
class SingleCopySteps {
 public:
  // Where the bytes of a place begin.
  struct Location {
    std::byte* data = nullptr;  // In the address space of this process, or of its owner's.
    Rank owner = 0;             // In the group.
    bool is_private = false;    // Of another rank.
  };
  SingleCopySteps(const Plan& plan, const Membership& membership, const Windows& windows,
                  const transport::Transport& transport);

  // Works on a step of the plan's schedule, as LocalSteps does. Where the buffer of a place begins
  // is a function of the place. `scratch` is nobody else's. Fails as Transport::get() and put() do;
  // and with aborted, having left that rank's memory alone, if a rank has given up the operation.
  template <class Locate>
  Status run(const schedule::Step& step, const Locate& locate, ByteSpan scratch, StepCursor& cursor,
             Turn& turn) {
    Prepared& prepared = prepared_[static_cast<std::size_t>(&step - first_step_)];
    const std::size_t begin_bytes = cursor.element * prepared.element_bytes;
    const std::size_t places = prepared.sources.size() + prepared.targets.size();
    const std::size_t count =
        turn.take(prepared.count - cursor.element, places * prepared.element_bytes,
                  kPieceBytes / prepared.element_bytes);
    if (!cursor.move(count, prepared.count)) return {};
    const auto sources = plan_->schedule().sources(step);
    const auto targets = plan_->schedule().targets(step);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      prepared.sources[i] = locate(sources[i]);
      prepared.sources[i].data += prepared.source_offsets[i] + begin_bytes;
    }
    for (std::size_t i = 0; i < targets.size(); ++i) {
      prepared.targets[i] = locate(targets[i]);
      prepared.targets[i].data += prepared.target_offsets[i] + begin_bytes;
    }
    if (!prepared.failure.ok()) return prepared.failure;
    return prepared.reduction ? reduce(prepared, count, scratch) : copy(prepared, count);
  }

 private:
  // What is copied, reduced and copied back at a time: so much that system calls do not count, and
  // so little that two of them stay in a core's own cache.
  static constexpr std::size_t kPieceBytes = 256 * 1024;
  // A step, and the buffers of one run.
  struct Prepared {
    std::size_t count = 0;
    std::size_t element_bytes = 1;
    std::optional<kernel::PreparedReduction> reduction;  // Nothing: a copy.
    Status failure;                                      // Why there is no reduction, if so.
    std::vector<std::size_t> source_offsets;
    std::vector<std::size_t> target_offsets;
    std::vector<Location> sources;
    std::vector<Location> targets;
    std::vector<kernel::Input> inputs;
  };
  void prepare(Prepared& prepared, const schedule::Step& step) const;
  Status copy(const Prepared& prepared, std::size_t count) const;
  Status reduce(Prepared& prepared, std::size_t elements, ByteSpan scratch) const;
  Status move(const Location& from, const Location& to, std::size_t bytes) const;
  template <class Copy>
  Status reach_into(Rank owner, const Copy& copy) const;

  const Plan* plan_;
  const Membership* membership_;
  const Windows* windows_;
  const transport::Transport* transport_;
  const schedule::Step* first_step_;
  std::vector<Prepared> prepared_;  // Per step.
};

}  // namespace stretto::execution
