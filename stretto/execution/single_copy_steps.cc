// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/execution/single_copy_steps.h"

#include <algorithm>

#include <fmt/format.h>

#include "stretto/execution/step.h"
#include "stretto/kernel/copy.h"

namespace stretto::execution {
namespace {

using Location = SingleCopySteps::Location;

constexpr std::size_t kAlignmentBytes = 64;
// Of what the kernel only copies, so much goes at a time: whoever gives up waits for it.
constexpr std::size_t kCopiedBytes = 1024 * 1024;

// Who has given up tells everybody why, in its own time.
Status gave_up(Rank rank) {
  return {StatusCode::aborted, fmt::format("rank {} has given up the operation", rank.value()),
          rank};
}

Location advanced(const Location& location, std::size_t bytes) {
  return {location.data + bytes, location.owner, location.is_private};
}

}  // namespace

SingleCopySteps::SingleCopySteps(const Plan& plan, const Membership& membership,
                                 const Windows& windows, const transport::Transport& transport)
    : plan_(&plan),
      membership_(&membership),
      windows_(&windows),
      transport_(&transport),
      first_step_(plan.schedule().steps.data()),
      prepared_(plan.schedule().steps.size()) {
  for (std::size_t i = 0; i < prepared_.size(); ++i) {
    if (first_step_[i].kind != schedule::StepKind::sync) prepare(prepared_[i], first_step_[i]);
  }
}

void SingleCopySteps::prepare(Prepared& prepared, const schedule::Step& step) const {
  const auto sources = plan_->schedule().sources(step);
  const auto targets = plan_->schedule().targets(step);
  const Plan::Range range = plan_->range(targets.front(), 0);
  prepared.count = range.count;
  prepared.element_bytes = size_bytes(range.dtype);
  for (const schedule::Place& place : sources) {
    prepared.source_offsets.push_back(plan_->range(place, 0).offset_bytes);
    prepared.inputs.push_back({.data = nullptr, .dtype = range.dtype});
  }
  for (const schedule::Place& place : targets) {
    prepared.target_offsets.push_back(plan_->range(place, 0).offset_bytes);
  }
  prepared.sources.resize(sources.size());
  prepared.targets.resize(targets.size());
  if (step.kind == schedule::StepKind::copy) return;
  void* const output = nullptr;
  auto reduction = prepare_reduction(*plan_, step, prepared.inputs, std::span(&output, 1),
                                     kernel::Store::automatic);
  prepared.failure = reduction.status();
  if (reduction.ok()) prepared.reduction = *reduction;
}

// See window.h, Note [private memory of those who give up].
template <class Copy>
Status SingleCopySteps::reach_into(Rank owner, const Copy& copy) const {
  std::atomic<std::uint32_t>& claim =
      windows_->of[static_cast<std::size_t>(membership_->rank)]->reaches_into;
  const Window& theirs = *windows_->of[static_cast<std::size_t>(owner)];
  claim.store(static_cast<std::uint32_t>(owner.value()) + 1, std::memory_order_seq_cst);
  const bool has_given_up = theirs.given_up.load(std::memory_order_seq_cst) >= windows_->entered;
  const Rank job_rank = membership_->job_rank(owner);
  const Status status = has_given_up ? gave_up(job_rank) : copy(job_rank);
  // Release: the copy is over for whoever sees that there is none any more.
  claim.store(0, std::memory_order_release);
  return status;
}

// One of the two is of this rank, or mapped.
Status SingleCopySteps::move(const Location& from, const Location& to, std::size_t bytes) const {
  using transport::RemoteAddress;
  if (from.is_private) {
    return reach_into(from.owner, [&](Rank owner) {
      return transport_->get(owner, RemoteAddress::of_private(from.data), {to.data, bytes});
    });
  }
  if (to.is_private) {
    return reach_into(to.owner, [&](Rank owner) {
      return transport_->put(owner, {from.data, bytes}, RemoteAddress::of_private(to.data));
    });
  }
  if (from.data != to.data) kernel::copy(to.data, from.data, bytes);  // Else in place.
  return {};
}

Status SingleCopySteps::copy(const Prepared& prepared, std::size_t count) const {
  const Location& source = prepared.sources.front();
  const std::size_t bytes = count * prepared.element_bytes;
  for (const Location& target : prepared.targets) {
    const bool is_private = source.is_private || target.is_private;
    const std::size_t at_once = is_private ? kCopiedBytes : bytes;
    for (std::size_t begin = 0; begin < bytes; begin += at_once) {
      STRETTO_RETURN_IF_ERROR(
          move(advanced(source, begin), advanced(target, begin), std::min(at_once, bytes - begin)));
    }
  }
  return {};
}

Status SingleCopySteps::reduce(Prepared& prepared, std::size_t elements, ByteSpan scratch) const {
  const auto& targets = prepared.targets;
  const auto slots = static_cast<std::size_t>(
      std::ranges::count_if(prepared.sources, [](const Location& l) { return l.is_private; }) +
      (targets.front().is_private ? 1 : 0));
  const std::size_t room = scratch.size() / std::max<std::size_t>(1, slots);
  const std::size_t piece_bytes = std::min(kPieceBytes, room / kAlignmentBytes * kAlignmentBytes);
  if (piece_bytes == 0) return {StatusCode::internal, "there is no scratch for a single copy"};
  const std::size_t piece = piece_bytes / prepared.element_bytes;
  for (std::size_t begin = 0; begin < elements; begin += piece) {
    const std::size_t count = std::min(piece, elements - begin);
    const std::size_t offset_bytes = begin * prepared.element_bytes;
    const std::size_t bytes = count * prepared.element_bytes;
    std::byte* unused = scratch.data();
    for (std::size_t i = 0; i < prepared.sources.size(); ++i) {
      Location source = advanced(prepared.sources[i], offset_bytes);
      if (source.is_private) {
        const Location slot{.data = unused};
        STRETTO_RETURN_IF_ERROR(move(source, slot, bytes));
        unused += piece_bytes;
        source = slot;
      }
      prepared.inputs[i].data = source.data;
    }
    Location result = advanced(targets.front(), offset_bytes);
    if (result.is_private) result = {.data = unused};
    void* const output = result.data;
    prepared.reduction->run(count, prepared.inputs, std::span(&output, 1));
    for (const Location& target : targets) {
      STRETTO_RETURN_IF_ERROR(move(result, advanced(target, offset_bytes), bytes));
    }
  }
  return {};
}

}  // namespace stretto::execution
