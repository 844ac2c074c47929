// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/execution/resolved_buffers.h"

#include <algorithm>

#include "stretto/base/huge_pages.h"

namespace stretto::execution {

using transport::MemoryKind;

ResolvedBuffers::ResolvedBuffers(const Plan& plan, const Membership& membership,
                                 SingleCopy single_copy, transport::SharedMemory& memory)
    : plan_(&plan),
      membership_(&membership),
      single_copy_(single_copy),
      memory_(&memory),
      posted_(membership.members.size()),
      resolved_(membership.members.size()),
      inputs_(membership.members.size()),
      outputs_(membership.members.size()),
      held_(2 * membership.members.size()) {}

bool ResolvedBuffers::is_own_known(const std::byte* input, const std::byte* output) {
  if (may_change_ && ++uses_ >= uses_to_next_look_) return false;
  return is_own_known_ && input_ == input && output_ == output &&
         generation_ == memory_->generation();
}

void ResolvedBuffers::find_own(const std::byte* input, const std::byte* output) {
  const bool again = is_own_known_ && input_ == input && output_ == output;
  uses_to_next_look_ = again ? 2 * uses_to_next_look_ : 1;
  uses_ = 0;
  generation_ = memory_->generation();
  is_own_known_ = true;
  are_others_known_ = false;
  input_ = input;
  output_ = output;
  const Rank self = membership_->rank;
  const std::size_t input_bytes = plan_->input_bytes(self);
  const std::size_t output_bytes = plan_->output_bytes(self);
  const transport::RemoteAddress in = find(input, input_bytes);
  const bool in_place = input == output && input_bytes == output_bytes;
  const transport::RemoteAddress out = in_place ? in : find(output, output_bytes);
  own_ = {.input_offset_bytes = in.offset_bytes,
          .output_offset_bytes = out.offset_bytes,
          .input_region = in.region,
          .output_region = out.region};
  may_change_ = single_copy_ != SingleCopy::off && !is_own_reachable();
}

transport::RemoteAddress ResolvedBuffers::find(const std::byte* data, std::size_t bytes) const {
  const transport::RemoteAddress address = memory_->locate(data, bytes);
  if (address.valid() || single_copy_ == SingleCopy::off || bytes == 0) return address;
  // Where pages are small, the kernel takes longer to find them than to copy what is in them.
  const bool pays = single_copy_ == SingleCopy::always || lies_in_huge_pages(data, bytes);
  return pays ? transport::RemoteAddress::in_process(data) : address;
}

bool ResolvedBuffers::could_reach(const std::byte* input, const std::byte* output) const {
  const auto reaches = [&](const std::byte* data, std::size_t bytes) {
    return bytes == 0 || find(data, bytes).valid();
  };
  return reaches(input, plan_->input_bytes(membership_->rank)) &&
         reaches(output, plan_->output_bytes(membership_->rank));
}

bool ResolvedBuffers::is_reachable(transport::RemoteAddress address) const {
  const bool is_on_device = plan_->operation().algorithm == kDeviceAlgorithm;
  return address.kind() == (is_on_device ? MemoryKind::device : MemoryKind::registered) ||
         (address.kind() == MemoryKind::process && single_copy_ != SingleCopy::off);
}

// What has no bytes need not be reached.
bool ResolvedBuffers::are_reachable(Rank member, const Post::Buffers& buffers) const {
  return (is_reachable(buffers.input()) || plan_->input_bytes(member) == 0) &&
         (is_reachable(buffers.output()) || plan_->output_bytes(member) == 0);
}

bool ResolvedBuffers::are_resolved() const {
  return are_others_known_ && generation_ == memory_->generation() && posted_ == resolved_;
}

// The data is null if it is not there (yet), or if there are no bytes.
BufferRef ResolvedBuffers::resolve(Rank member, transport::RemoteAddress address,
                                   std::size_t bytes) const {
  BufferRef buffer{.kind = address.kind(), .owner = member};
  if (bytes == 0) return buffer;
  buffer.data = buffer.kind == MemoryKind::process
                    ? reinterpret_cast<std::byte*>(address.offset_bytes)
                    : memory_->resolve(membership_->job_rank(member), address, bytes);
  return buffer;
}

// What this process lacks to take in the buffers of a member; ok: nothing.
Status ResolvedBuffers::find_shortage(std::size_t member) const {
  const Rank job_rank = membership_->members[member];
  const Status input = memory_->find_shortage(job_rank, posted_[member].input());
  return input.ok() ? memory_->find_shortage(job_rank, posted_[member].output()) : input;
}

bool ResolvedBuffers::is_resolved(std::size_t member) const {
  const Rank rank = static_cast<std::int32_t>(member);
  const auto is_mapped = [&](transport::RemoteAddress address, std::size_t bytes) {
    return bytes == 0 || resolve(rank, address, bytes).data != nullptr;
  };
  return is_mapped(posted_[member].input(), plan_->input_bytes(rank)) &&
         is_mapped(posted_[member].output(), plan_->output_bytes(rank));
}

bool ResolvedBuffers::resolve(Status& shortage) {
  // What is found now is good until the memory changes after this.
  const std::uint64_t generation = memory_->generation();
  for (std::size_t i = 0; i < posted_.size(); ++i) {
    const Rank job_rank = membership_->members[i];
    const Rank member = static_cast<std::int32_t>(i);
    // Held first, so that what is found is still there.
    held_[2 * i] = memory_->hold(job_rank, posted_[i].input());
    held_[2 * i + 1] = memory_->hold(job_rank, posted_[i].output());
    inputs_[i] = resolve(member, posted_[i].input(), plan_->input_bytes(member));
    outputs_[i] = resolve(member, posted_[i].output(), plan_->output_bytes(member));
    if (!is_resolved(i)) {
      shortage = shortage_.judge(find_shortage(i));
      return false;
    }
    resolved_[i] = posted_[i];
  }
  const auto is_private = [](const BufferRef& b) { return b.kind == MemoryKind::process; };
  lie_in_processes_ =
      std::ranges::any_of(inputs_, is_private) || std::ranges::any_of(outputs_, is_private);
  shortage_ = {};
  generation_ = generation;
  are_others_known_ = true;
  return true;
}

void ResolvedBuffers::release() {
  is_own_known_ = false;
  are_others_known_ = false;
  for (std::shared_ptr<void>& memory : held_) memory.reset();
}

}  // namespace stretto::execution
