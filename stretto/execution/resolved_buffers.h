// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "stretto/base/rank_vector.h"
#include "stretto/base/single_copy.h"
#include "stretto/execution/execution.h"
#include "stretto/execution/step.h"
#include "stretto/execution/window.h"
#include "stretto/transport/shortage.h"

namespace stretto::execution {

// Where the callers' buffers lie in an operation that runs on them: this rank's buffers, as the
// others find them, and those of the others, as this process finds them. Both are often the same as
// in the run before; seeing that does not need the engine's lock.
class ResolvedBuffers {
 public:
  // The plan says how much of each rank's buffers is used. All must outlive this.
  ResolvedBuffers(const Plan& plan, const Membership& membership, SingleCopy single_copy,
                  transport::SharedMemory& memory);

  // Whether find_own() would find the same as last time. Any thread that owns the run.
  bool is_own_known(const std::byte* input, const std::byte* output);
  void find_own(const std::byte* input, const std::byte* output);
  const Post::Buffers& own() const { return own_; }
  bool is_own_reachable() const { return are_reachable(membership_->rank, own_); }
  // Whether others could reach these buffers. Changes nothing.
  bool could_reach(const std::byte* input, const std::byte* output) const;

  // Takes what a member has posted in this run; returns whether its buffers can be reached.
  bool take(std::size_t member, const Post::Buffers& posted) {
    return are_reachable(static_cast<std::int32_t>(member), posted_[member] = posted);
  }
  // Whether all members have posted what was resolved last. Any thread that owns the run.
  bool are_resolved() const;
  // If they have not: resolves what they have posted. Returns false while some rank's region is not
  // mapped here yet; `shortage` then says why, if that has lasted for long (kShortageTime).
  bool resolve(Status& shortage);
  // Whether the buffers that a member has posted are mapped here.
  bool is_resolved(std::size_t member) const;
  // Whether some buffers are private memory, which the kernel copies.
  bool lie_in_processes() const { return lie_in_processes_; }
  const BufferRef& input(Rank member) const { return inputs_[member]; }
  const BufferRef& output(Rank member) const { return outputs_[member]; }

  // Lets go of the others' memory. To be called while no run is going on.
  void release();

 private:
  transport::RemoteAddress find(const std::byte* data, std::size_t bytes) const;
  bool is_reachable(transport::RemoteAddress address) const;
  bool are_reachable(Rank member, const Post::Buffers& buffers) const;
  BufferRef resolve(Rank member, transport::RemoteAddress address, std::size_t bytes) const;
  Status find_shortage(std::size_t member) const;

  const Plan* plan_;
  const Membership* membership_;
  SingleCopy single_copy_;
  transport::SharedMemory* memory_;
  std::uint64_t generation_ = 0;  // Of the transport's memory, before anything was looked up.
  const std::byte* input_ = nullptr;
  const std::byte* output_ = nullptr;
  Post::Buffers own_;
  bool is_own_known_ = false;
  // Private memory that has just been allocated has no pages before it is written. So it is looked
  // at again, at the 2nd, 4th, 8th ... use.
  bool may_change_ = false;
  std::uint64_t uses_ = 0;
  std::uint64_t uses_to_next_look_ = 1;
  std::vector<Post::Buffers> posted_;    // Per rank, of this run.
  std::vector<Post::Buffers> resolved_;  // Per rank, what inputs_ and outputs_ were made of.
  RankVector<BufferRef> inputs_;
  RankVector<BufferRef> outputs_;
  // Keep buffers mapped, for each rank its input and output: the owner may free one while it is
  // still used here.
  std::vector<std::shared_ptr<void>> held_;
  bool are_others_known_ = false;
  bool lie_in_processes_ = false;
  transport::ShortageTimer shortage_;
};

}  // namespace stretto::execution
