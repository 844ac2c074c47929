// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/planner.h"

#include <algorithm>

#include <fmt/format.h>

#include "stretto/execution/window.h"
#include "stretto/schedule/processors.h"

namespace stretto::group {
namespace {

constexpr std::size_t kWhole = std::size_t{1} << 62;
// Bytes of a slot that are staged at a time. About as many stay in a core's own cache, and fewer
// syncs with larger segments gain nothing.
constexpr std::size_t kStagedBytes = 512 * 1024;
// Where some ranks only stage and others only copy, the copying begins after this many staged
// bytes.
constexpr std::size_t kStreamedBytes = 64 * 1024;
// A kernel takes at most this many inputs and outputs (cuda/reduction.h).
constexpr int kDeviceRanksMax = 16;

}  // namespace

Result<Plans> Planner::plan(const OperationDescriptor& operation,
                            const std::optional<execution::SharesView>& shares,
                            std::string_view algorithm) const {
  if (runs_in_library(operation, algorithm)) return plan_library(operation, shares);
  if (is_mapped_on_devices(operation)) {
    return plan_on_device(operation, shares);
  }
  STRETTO_ASSIGN_OR_RETURN(auto choice, selector_.choose(operation, algorithm, setting_.is_one_team,
                                                         !shares.has_value()));
  const auto make = [&](const schedule::Algorithm* chosen, Cut cut) {
    return make_plan(chosen, operation, shares, cut);
  };
  STRETTO_ASSIGN_OR_RETURN(auto messages, make(choice.messages, Cut::segments));
  STRETTO_ASSIGN_OR_RETURN(auto direct, make(choice.direct, Cut::whole));
  STRETTO_ASSIGN_OR_RETURN(auto staged, make(choice.staged, Cut::segments));
  return Plans{.messages = std::move(messages),
               .direct = std::move(direct),
               .staged = std::move(staged),
               .single_copy = single_copy_of(operation, choice)};
}

bool Planner::is_mapped_on_devices(const OperationDescriptor& operation) const {
  return !setting_.devices.empty() && operation.algorithm == kDeviceAlgorithm;
}

// Returns the same on all ranks.
bool Planner::runs_in_library(const OperationDescriptor& operation,
                              std::string_view algorithm) const {
  const bool is_set_up = operation.layout == kSetUpLayout || operation.layout == kMonitoredLayout;
  if (setting_.library == nullptr || !algorithm.empty() || is_set_up) return false;
  if (setting_.serves_devices) return is_on_device(operation.algorithm);
  OperationDescriptor sum = operation;
  if (sum.op == ReduceOp::mean) sum.op = ReduceOp::sum;
  return setting_.library->can_run(operation) || setting_.library->can_run(sum);
}

bool Planner::maps_all_devices() const {
  return !setting_.devices.empty() && setting_.is_one_team &&
         setting_.selector.rank_count <= kDeviceRanksMax;
}

Result<Plans> Planner::plan_on_device(const OperationDescriptor& operation,
                                      const std::optional<execution::SharesView>& shares) const {
  const schedule::Algorithm* const algorithm =
      schedule::find_algorithm(operation.collective, schedule::Access::mapped, "direct_mapped");
  if (!maps_all_devices() || algorithm == nullptr) {
    return status_of(StatusCode::invalid_argument,
                     "memory of devices can be mapped by up to {} ranks, which are all on one host "
                     "and share its memory; others can use the backend \"nccl\"",
                     kDeviceRanksMax);
  }
  STRETTO_ASSIGN_OR_RETURN(auto direct, make_plan(algorithm, operation, shares, Cut::whole));
  return Plans{.messages = nullptr, .direct = std::move(direct)};
}

Result<Plans> Planner::plan_library(const OperationDescriptor& operation,
                                    const std::optional<execution::SharesView>& shares) const {
  const int ranks = setting_.selector.rank_count;
  OperationDescriptor meets;
  std::string_view way = "recursive_doubling";
  // Only two ranks know the count of each message, so they tell each other and compare.
  if (execution::counts_by_message(operation)) {
    meets = {.collective = Collective::all_to_all,
             .dtype = DType::u64,
             .count = static_cast<std::size_t>(ranks)};
    way = "pairwise";
  }
  STRETTO_ASSIGN_OR_RETURN(
      auto meeting,
      make_plan(schedule::find_algorithm(meets.collective, schedule::Access::messages, way), meets,
                std::nullopt, Cut::whole));
  schedule::Schedule shape;
  shape.collective = operation.collective;
  shape.rank = setting_.rank;
  shape.rank_count = ranks;
  shape.root = operation.root < 0 ? Rank(0) : Rank(operation.root);
  shape.chunk_count = schedule::required_chunks(operation.collective, ranks).value_or(1);
  const execution::Plan whole(
      std::move(shape),
      execution::Plan::Options{.operation = operation,
                               .shares = shares.value_or(execution::SharesView()).copy(),
                               .segment_bytes_max = kWhole});
  return Plans{.messages = std::move(meeting),
               .library = std::make_shared<const execution::LibraryPlan>(
                   execution::make_library_plan(whole, *setting_.library))};
}

Result<std::uint8_t> Planner::number_of(const OperationDescriptor& operation, bool equal_shares,
                                        std::string_view algorithm) const {
  STRETTO_ASSIGN_OR_RETURN(
      auto choice, selector_.choose(operation, algorithm, setting_.is_one_team, equal_shares));
  const schedule::Algorithm* named = choice.messages != nullptr ? choice.messages
                                     : choice.direct != nullptr ? choice.direct
                                                                : choice.staged;
  return named->id;
}

// The segment size of staging on mapped memory.
std::size_t Planner::staged_segment_bytes(const schedule::Schedule& steps) const {
  const auto slots = static_cast<std::size_t>(std::max(1, steps.raw_slots));
  const bool streams = has_root(steps.collective) && steps.sync_count() == 1;
  const std::size_t bytes =
      std::min(execution::Window::slot_bytes(slots), streams ? kStreamedBytes : kStagedBytes);
  const std::size_t most = setting_.selector.segment_bytes;
  return most > 0 ? std::min(bytes, most) : bytes;
}

// Returns null if `algorithm` is null.
Result<std::shared_ptr<const execution::Plan>> Planner::make_plan(
    const schedule::Algorithm* algorithm, const OperationDescriptor& operation,
    const std::optional<execution::SharesView>& shares, Cut cut) const {
  if (algorithm == nullptr) return std::shared_ptr<const execution::Plan>();
  const schedule::Shape shape{.rank = setting_.rank,
                              .rank_count = setting_.selector.rank_count,
                              .root = operation.root < 0 ? Rank(0) : Rank(operation.root),
                              .hosts = setting_.selector.hosts};
  const bool is_on_devices = is_mapped_on_devices(operation);
  STRETTO_RETURN_IF_ERROR(schedule::prove(
      *algorithm, shape, setting_.verification,
      is_on_devices ? std::span(setting_.devices) : std::span<const std::int32_t>()));
  schedule::Schedule steps =
      is_on_devices ? schedule::build_for_processors(*algorithm, shape, setting_.devices)
                    : algorithm->build(shape);
  const std::size_t segment_bytes = cut == Cut::whole ? kWhole
                                    : algorithm->access == schedule::Access::mapped
                                        ? staged_segment_bytes(steps)
                                        : selector_.segment_bytes(*algorithm, operation);
  const std::size_t lanes =
      selector_.lanes(*algorithm, segment_bytes * static_cast<std::size_t>(steps.chunk_count));
  return std::make_shared<const execution::Plan>(
      std::move(steps),
      execution::Plan::Options{.operation = operation,
                               .shares = shares.value_or(execution::SharesView()).copy(),
                               .segment_bytes_max = segment_bytes,
                               .lanes = lanes});
}

SingleCopy Planner::single_copy_of(const OperationDescriptor& operation,
                                   const Choice& choice) const {
  const SingleCopy agreed = setting_.single_copy;
  const bool reaches_buffers =
      choice.direct != nullptr && operation.collective != Collective::barrier;
  if (!reaches_buffers || agreed == SingleCopy::off) return SingleCopy::off;
  // An algorithm asked for by name must not depend on page sizes, which each rank sees only for
  // itself.
  if (choice.staged == nullptr) return SingleCopy::always;
  const bool wanted = agreed == SingleCopy::always || selector_.prefers_single_copy(operation);
  return wanted ? agreed : SingleCopy::off;
}

Explanation Planner::explain(const OperationDescriptor& operation,
                             std::string_view algorithm) const {
  Explanation explanation{.links = selector_.links().source};
  const bool one_team = setting_.is_one_team;
  Result<Choice> choice = selector_.choose(operation, algorithm, one_team, true);
  if (!choice.ok()) {
    algorithm = {};  // Explains as if no algorithm were named.
    choice = selector_.choose(operation, algorithm, one_team, true);
  }
  if (runs_in_library(operation, algorithm)) {
    explanation.algorithm = explanation.algorithm_registered = explanation.algorithm_huge_pages =
        setting_.library->name();
    explanation.reason = "the job's backend is that library, which runs such operations itself";
    return explanation;
  }
  if (!choice.ok()) {
    explanation.reason = choice.status().message();
    return explanation;
  }
  const auto describe_plan = [&](const schedule::Algorithm& chosen) {
    auto plan = make_plan(&chosen, operation, std::nullopt, Cut::segments);
    if (plan.ok()) {
      explanation.segments = (*plan)->segment_count();
      explanation.segment_bytes = (*plan)->segment_bytes();
      if (chosen.access != schedule::Access::mapped) {
        explanation.lanes = std::min((*plan)->lanes(), explanation.segments);
      }
    }
    return std::string(chosen.name);
  };
  if (choice->messages != nullptr) {
    explanation.algorithm = explanation.algorithm_registered = explanation.algorithm_huge_pages =
        describe_plan(*choice->messages);
    explain_messages(operation, algorithm, explanation);
    return explanation;
  }
  const schedule::Algorithm& elsewhere =
      choice->staged != nullptr ? *choice->staged : *choice->direct;
  explanation.algorithm = describe_plan(elsewhere);
  explain_mapped(operation, algorithm, *choice, explanation);
  return explanation;
}

void Planner::explain_messages(const OperationDescriptor& operation, std::string_view algorithm,
                               Explanation& explanation) const {
  for (const auto& list : {selector_.candidates(operation, true), selector_.others(operation)}) {
    for (const auto& candidate : list) {
      explanation.candidates.push_back({std::string(candidate.algorithm->name), candidate.seconds});
    }
  }
  explanation.reason = "it was asked for";
  if (!algorithm.empty()) return;
  explanation.reason = fmt::format(
      "the model of the links finds it cheapest, or within {:.0f} % of that with the least work "
      "beside the wire, among those that keep the canonical order",
      100 * Selector::kSameCost);
}

void Planner::explain_mapped(const OperationDescriptor& operation, std::string_view algorithm,
                             const Choice& choice, Explanation& explanation) const {
  const schedule::Algorithm& registered =
      choice.direct != nullptr ? *choice.direct : *choice.staged;
  explanation.algorithm_registered = registered.name;
  const SingleCopy copies = single_copy_of(operation, choice);
  explanation.algorithm_huge_pages =
      copies == SingleCopy::off ? explanation.algorithm : explanation.algorithm_registered;
  explanation.reason = fmt::format(
      "all ranks share memory: registered buffers are used where they lie, others pass through a "
      "window of staging memory{}{}",
      copies == SingleCopy::off      ? ""
      : copies == SingleCopy::always ? " or are copied once by the kernel"
                                     : " or, in huge pages, are copied once by the kernel",
      algorithm.empty() && operation.collective != Collective::barrier
          ? "; " + selector_.mapped_thresholds(operation.collective)
          : "");
}

}  // namespace stretto::group
