// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/execution/process_queue.h"

#include <algorithm>

#include <fmt/format.h>

#include "stretto/base/round_up.h"
#include "stretto/kernel/copy.h"

namespace stretto::execution {
namespace {

using transport::MemoryKind;
using transport::RemoteAddress;

// How much the kernel copies at a time if nothing is reduced: a rank that abandons an operation
// waits for that.
constexpr std::size_t kCopiedBytes = 1024 * 1024;

bool is_elsewhere(const BoundStep::Operand& operand) { return operand.kind == MemoryKind::process; }

// A rank that has abandoned an operation tells all others why, in its own time.
Status abandoned_by(Rank rank) {
  return {StatusCode::aborted, fmt::format("rank {} has abandoned the operation", rank.value()),
          rank};
}

BufferRef source_of(const BoundStep& step, std::size_t index, std::size_t offset_bytes) {
  const auto* data = static_cast<const std::byte*>(step.inputs[index].data);
  return {.data = const_cast<std::byte*>(data) + offset_bytes,  // Only read.
          .kind = step.sources[index].kind,
          .owner = step.sources[index].owner};
}

BufferRef target_of(const BoundStep& step, std::size_t index, std::size_t offset_bytes) {
  return {.data = static_cast<std::byte*>(step.outputs[index]) + offset_bytes,
          .kind = step.targets[index].kind,
          .owner = step.targets[index].owner};
}

}  // namespace

Status ProcessQueue::run(const BoundStep& step, std::size_t count) {
  return step.reduction ? reduce(step, count) : copy(step, count * step.output_element_bytes);
}

// See window.h, Note [private memory of an abandoned operation].
template <class Copy>
Status ProcessQueue::reach_into(Rank owner, const Copy& copy) const {
  std::atomic<std::uint32_t>& claim = windows_->of[membership_->rank]->reaches_into;
  const Window& theirs = *windows_->of[owner];
  claim.store(static_cast<std::uint32_t>(owner.value()) + 1, std::memory_order_seq_cst);
  const bool has_abandoned = theirs.abandoned.load(std::memory_order_seq_cst) >= windows_->entered;
  const Rank job_rank = membership_->job_rank(owner);
  const Status status = has_abandoned ? abandoned_by(job_rank) : copy(job_rank);
  // Release: the copy is over for whoever sees the 0.
  claim.store(0, std::memory_order_release);
  return status;
}

// At least one of the two buffers is this rank's own, or mapped.
Status ProcessQueue::move(const BufferRef& from, const BufferRef& to, std::size_t bytes) const {
  if (from.kind == MemoryKind::process) {
    return reach_into(from.owner, [&](Rank owner) {
      return memory_->get(owner, RemoteAddress::in_process(from.data), {to.data, bytes});
    });
  }
  if (to.kind == MemoryKind::process) {
    return reach_into(to.owner, [&](Rank owner) {
      return memory_->put(owner, {from.data, bytes}, RemoteAddress::in_process(to.data));
    });
  }
  if (from.data != to.data) kernel::copy(to.data, from.data, bytes);  // Else in place.
  return {};
}

Status ProcessQueue::copy(const BoundStep& step, std::size_t bytes) const {
  for (std::size_t i = 0; i < step.outputs.size(); ++i) {
    const bool is_mapped = !is_elsewhere(step.sources.front()) && !is_elsewhere(step.targets[i]);
    const std::size_t at_once = is_mapped ? bytes : kCopiedBytes;
    for (std::size_t begin = 0; begin < bytes; begin += at_once) {
      STRETTO_RETURN_IF_ERROR(move(source_of(step, 0, begin), target_of(step, i, begin),
                                   std::min(at_once, bytes - begin)));
    }
  }
  return {};
}

Status ProcessQueue::reduce(const BoundStep& step, std::size_t elements) {
  Window& own = *windows_->of[membership_->rank];
  std::byte* const scratch = own.half(windows_->staging_turn);
  const bool result_is_elsewhere = is_elsewhere(step.targets.front());
  const auto slots = static_cast<std::size_t>(std::ranges::count_if(step.sources, is_elsewhere) +
                                              (result_is_elsewhere ? 1 : 0));
  const std::size_t room = Window::kHalfBytes / std::max<std::size_t>(1, slots);
  const std::size_t piece_bytes = std::min(kPieceBytes, room / kCacheLineBytes * kCacheLineBytes);
  if (piece_bytes == 0) return {StatusCode::internal, "there is no scratch for a single copy"};
  const std::size_t element_bytes = step.output_element_bytes;
  const std::size_t piece = piece_bytes / element_bytes;
  if (inputs_.size() < step.inputs.size()) inputs_.resize(step.inputs.size());
  const std::span inputs(inputs_.data(), step.inputs.size());
  kernel::Reduction reduction = step.reduction->like();
  reduction.store = kernel::Store::automatic;
  reduction.inputs = inputs;
  for (std::size_t begin = 0; begin < elements; begin += piece) {
    const std::size_t count = std::min(piece, elements - begin);
    const std::size_t offset_bytes = begin * element_bytes;
    const std::size_t bytes = count * element_bytes;
    std::byte* unused = scratch;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      BufferRef source = source_of(step, i, offset_bytes);
      if (source.kind == MemoryKind::process) {
        const BufferRef slot{.data = unused};
        STRETTO_RETURN_IF_ERROR(move(source, slot, bytes));
        unused += piece_bytes;
        source = slot;
      }
      inputs[i] = {.data = source.data, .dtype = step.inputs[i].dtype};
    }
    const BufferRef result =
        result_is_elsewhere ? BufferRef{.data = unused} : target_of(step, 0, offset_bytes);
    void* const output = result.data;
    reduction.count = count;
    reduction.outputs = std::span(&output, 1);
    STRETTO_RETURN_IF_ERROR(kernel::reduce(reduction));
    for (std::size_t i = 0; i < step.outputs.size(); ++i) {
      STRETTO_RETURN_IF_ERROR(move(result, target_of(step, i, offset_bytes), bytes));
    }
  }
  return {};
}

}  // namespace stretto::execution
