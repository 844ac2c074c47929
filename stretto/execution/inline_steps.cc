// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/execution/inline_steps.h"

#include <cstring>

#include "stretto/execution/step.h"

namespace stretto::execution {
namespace {

void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  // Most copies here are of one number or two. The compiler does not know the length of the others,
  // and makes a call of their memcpy.
  if (bytes == sizeof(std::uint64_t)) {
    std::memcpy(to, from, sizeof(std::uint64_t));
  } else if (bytes == sizeof(std::uint32_t)) {
    std::memcpy(to, from, sizeof(std::uint32_t));
  } else {
    std::memcpy(to, from, bytes);
  }
}

// A post is written by its own rank only, and read after the only sync, which the post itself is.
bool fits_into_posts(const Plan& plan) {
  const schedule::Schedule& schedule = plan.schedule();
  return schedule.sync_count() == 1 && schedule.partial_slots == 0 && plan.segment_count() == 1 &&
         plan.shared_bytes() <= Post::kInlineBytes && schedule.collective != Collective::scatter;
}

}  // namespace

std::optional<InlineSteps> InlineSteps::create(const Plan& plan, const Windows& windows) {
  if (!fits_into_posts(plan)) return std::nullopt;
  InlineSteps steps(windows);
  for (const schedule::Step& step : plan.schedule().steps) {
    if (!steps.add(plan, step).ok()) return std::nullopt;
  }
  return steps;
}

InlineSteps::InlineSteps(const Windows& windows) : windows_(&windows) {
  for (std::size_t turn = 0; turn < bases_.size(); ++turn) {
    bases_[turn].resize(kPosts);
    for (Window* window : windows.of) bases_[turn].push_back(window->posts[turn].inline_bytes());
  }
}

Status InlineSteps::add(const Plan& plan, const schedule::Step& step) {
  if (step.kind == schedule::StepKind::sync) {
    sync_ = moves_.size();
    return {};
  }
  const auto operand = [&](const schedule::Place& place) -> Operand {
    const auto offset_bytes = static_cast<std::uint32_t>(plan.range(place, 0).offset_bytes);
    if (place.slot.buffer == schedule::Buffer::input) return {kInput, offset_bytes};
    if (place.slot.buffer == schedule::Buffer::output) return {kOutput, offset_bytes};
    return {kPosts + static_cast<std::uint32_t>(place.rank.value()), offset_bytes};
  };
  const auto targets = plan.schedule().targets(step);
  const Plan::Range range = plan.range(targets.front(), 0);
  if (range.count == 0) return {};
  const auto sources = plan.schedule().sources(step);
  Move move{.first_source = operands_.size(),
            .source_count = sources.size(),
            .target = operand(targets.front()),
            .bytes = range.bytes(),
            .count = range.count};
  for (const schedule::Place& source : sources) operands_.push_back(operand(source));
  if (step.kind == schedule::StepKind::reduce) {
    move.reduction = static_cast<int>(reductions_.size());
    STRETTO_RETURN_IF_ERROR(add_reduction(plan, step));
  }
  moves_.push_back(move);
  for (const schedule::Place& target : targets.subspan(1)) {
    moves_.push_back({.first_source = operands_.size(),
                      .source_count = 1,
                      .target = operand(target),
                      .bytes = range.bytes()});
    operands_.push_back(move.target);
  }
  return {};
}

Status InlineSteps::add_reduction(const Plan& plan, const schedule::Step& step) {
  const DType dtype = plan.operation().dtype;
  const std::vector<kernel::Input> inputs(plan.schedule().sources(step).size(), {nullptr, dtype});
  void* const output = nullptr;
  STRETTO_ASSIGN_OR_RETURN(
      auto reduction,
      prepare_reduction(plan, step, inputs, std::span(&output, 1), kernel::Store::automatic));
  reductions_.push_back(reduction);
  if (inputs_.size() < inputs.size()) inputs_ = inputs;
  return {};
}

void InlineSteps::run(const Call& call, std::size_t first, std::size_t last) {
  std::vector<std::byte*>& bases = bases_[(windows_->entered - 1) % bases_.size()];
  bases[kInput] = call.input.data;
  bases[kOutput] = call.output.data;
  const auto at = [&](Operand operand) { return bases[operand.base] + operand.offset_bytes; };
  for (std::size_t i = first; i < last; ++i) {
    const Move& move = moves_[i];
    const Operand* const sources = &operands_[move.first_source];
    std::byte* const target = at(move.target);
    if (move.reduction < 0) {
      const std::byte* const source = at(*sources);
      if (source != target) copy(target, source, move.bytes);
      continue;
    }
    for (std::size_t k = 0; k < move.source_count; ++k) inputs_[k].data = at(sources[k]);
    reductions_[static_cast<std::size_t>(move.reduction)].run_few(
        move.count, std::span(inputs_.data(), move.source_count), target);
  }
}

}  // namespace stretto::execution
