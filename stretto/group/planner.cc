// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/planner.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "stretto/execution/window.h"

namespace stretto::group {
namespace {

constexpr std::size_t kWhole = std::size_t{1} << 62;
// Of one slot, what is staged at a time: about what stays in a core's own cache, as fewer syncs
// gain nothing more.
constexpr std::size_t kStagedBytes = 512 * 1024;
// Where some ranks only stage and others only copy, the latter begin when they have this much.
constexpr std::size_t kStreamedBytes = 64 * 1024;
// Enough to keep a link, the reduction and the peer's reduction busy at the same time.
constexpr std::size_t kLanesOfMessages = 4;
// Each lane waits for the ranks of its host as well, which may have to wait for a core: where
// others used the cores, twice as many lanes took 0.6 to 0.8 of the time.
constexpr std::size_t kLanesOfTeams = 8;

// The longest segment of which each message, that of a partial sum too, leaves without its receive.
// A longer one waits until it is cleared, and what clears it waits behind all that is under way in
// the other direction: where one rank is alone on its host, the link rests for a quarter of the
// time.
std::size_t eager_segment_bytes(DType dtype) {
  return transport::kEagerBytes / size_bytes(accumulation_dtype(dtype)) * size_bytes(dtype);
}

}  // namespace

Result<Plans> Planner::plan(const OperationDescriptor& operation,
                            const std::optional<execution::SharesView>& shares,
                            std::string_view algorithm) const {
  if (runs_in_library(operation, algorithm)) return plan_library(operation, shares);
  STRETTO_ASSIGN_OR_RETURN(auto choice, selector_.choose(operation, algorithm, setting_.is_one_team,
                                                         !shares.has_value()));
  const auto make = [&](const schedule::Algorithm* chosen, std::size_t segment_bytes) {
    return make_plan(chosen, operation, shares, segment_bytes);
  };
  STRETTO_ASSIGN_OR_RETURN(
      auto messages,
      make(choice.messages, segment_bytes_of_messages(setting_.selector.rank_count)));
  STRETTO_ASSIGN_OR_RETURN(auto direct, make(choice.direct, kWhole));
  STRETTO_ASSIGN_OR_RETURN(auto staged, make(choice.staged, execution::Window::kHalfBytes));
  return Plans{.messages = std::move(messages),
               .direct = std::move(direct),
               .staged = std::move(staged),
               .single_copy = single_copy_of(operation, choice)};
}

// The same on all ranks.
bool Planner::runs_in_library(const OperationDescriptor& operation,
                              std::string_view algorithm) const {
  const bool is_set_up = operation.layout == kSetUpLayout || operation.layout == kMonitoredLayout;
  if (setting_.library == nullptr || !algorithm.empty() || is_set_up) return false;
  if (setting_.serves_devices) return operation.algorithm == kDeviceAlgorithm;
  OperationDescriptor sum = operation;
  if (sum.op == ReduceOp::mean) sum.op = ReduceOp::sum;
  return setting_.library->can_run(operation) || setting_.library->can_run(sum);
}

Result<Plans> Planner::plan_library(const OperationDescriptor& operation,
                                    const std::optional<execution::SharesView>& shares) const {
  const int ranks = setting_.selector.rank_count;
  OperationDescriptor meets;
  std::string_view way = "recursive_doubling";
  // Nobody else compares counts that only two ranks know: they tell each other.
  if (execution::counts_by_message(operation)) {
    meets = {.collective = Collective::all_to_all,
             .dtype = DType::u64,
             .count = static_cast<std::size_t>(ranks)};
    way = "pairwise";
  }
  STRETTO_ASSIGN_OR_RETURN(
      auto meeting,
      make_plan(schedule::find_algorithm(meets.collective, schedule::Access::messages, way), meets,
                std::nullopt, kWhole));
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

// Null where there is no algorithm.
Result<std::shared_ptr<const execution::Plan>> Planner::make_plan(
    const schedule::Algorithm* algorithm, const OperationDescriptor& operation,
    const std::optional<execution::SharesView>& shares, std::size_t segment_bytes) const {
  if (algorithm == nullptr) return std::shared_ptr<const execution::Plan>();
  const schedule::Shape shape{.rank = setting_.rank,
                              .rank_count = setting_.selector.rank_count,
                              .root = operation.root < 0 ? Rank(0) : Rank(operation.root),
                              .hosts = setting_.selector.hosts};
  STRETTO_RETURN_IF_ERROR(schedule::prove(*algorithm, shape, setting_.verification));
  schedule::Schedule steps = algorithm->build(shape);
  if (algorithm->access == schedule::Access::mapped && segment_bytes < kWhole) {
    const auto slots = static_cast<std::size_t>(std::max(1, steps.raw_slots));
    const bool streams = has_root(operation.collective) && steps.sync_count() == 1;
    segment_bytes =
        std::min(execution::Window::slot_bytes(slots), streams ? kStreamedBytes : kStagedBytes);
  }
  if (algorithm->access == schedule::Access::both) {
    // By what all ranks know, since both sides of a message must cut alike.
    const auto slots = static_cast<std::size_t>(std::max(1, steps.shared_slots_max));
    segment_bytes = std::min({segment_bytes, execution::Window::lane_slot_bytes(slots),
                              eager_segment_bytes(operation.dtype)});
  }
  if (setting_.segment_bytes > 0 && segment_bytes < kWhole) {
    segment_bytes = std::min(segment_bytes, setting_.segment_bytes);
  }
  const std::size_t lanes =
      lanes_for(segment_bytes * static_cast<std::size_t>(steps.chunk_count),
                algorithm->access == schedule::Access::both ? kLanesOfTeams : kLanesOfMessages);
  return std::make_shared<const execution::Plan>(
      std::move(steps),
      execution::Plan::Options{.operation = operation,
                               .shares = shares.value_or(execution::SharesView()).copy(),
                               .segment_bytes_max = segment_bytes,
                               .lanes = lanes});
}

// Where a network is long, what it carries while a message goes there and the answer comes back is
// under way as well.
std::size_t Planner::lanes_for(std::size_t lane_bytes, std::size_t least) const {
  const bool one_host = std::ranges::all_of(setting_.selector.hosts, [](int h) { return h == 0; });
  const schedule::LinkCost& link = one_host ? selector_.links().local : selector_.links().network;
  const double on_the_way = 2 * link.latency_seconds / link.seconds_per_byte;
  const double more =
      std::ceil(on_the_way / static_cast<double>(std::max<std::size_t>(1, lane_bytes)));
  const auto most = static_cast<double>(execution::Window::kLanes - least);
  return least + static_cast<std::size_t>(std::clamp(more - 1, 0.0, most));
}

SingleCopy Planner::single_copy_of(const OperationDescriptor& operation,
                                   const Choice& choice) const {
  const SingleCopy agreed = setting_.single_copy;
  const bool reaches_buffers =
      choice.direct != nullptr && operation.collective != Collective::barrier;
  if (!reaches_buffers || agreed == SingleCopy::off) return SingleCopy::off;
  // What has been asked for by name must not depend on pages, which each rank sees by itself.
  if (choice.staged == nullptr) return SingleCopy::always;
  const bool wanted = agreed == SingleCopy::always || selector_.prefers_single_copy(operation);
  return wanted ? agreed : SingleCopy::off;
}

Explanation Planner::explain(const OperationDescriptor& operation,
                             std::string_view algorithm) const {
  Explanation explanation{.links = selector_.links().source};
  if (runs_in_library(operation, algorithm)) {
    explanation.algorithm = explanation.algorithm_registered = explanation.algorithm_huge_pages =
        setting_.library->name();
    explanation.reason = "the job's backend is that library, which runs such operations itself";
    return explanation;
  }
  const bool one_team = setting_.is_one_team;
  Result<Choice> choice = selector_.choose(operation, algorithm, one_team, true);
  if (!choice.ok()) choice = selector_.choose(operation, {}, one_team, true);
  if (!choice.ok()) {
    explanation.reason = choice.status().message();
    return explanation;
  }
  const auto describe_plan = [&](const schedule::Algorithm& chosen, std::size_t segment_bytes) {
    auto plan = make_plan(&chosen, operation, std::nullopt, segment_bytes);
    if (plan.ok()) explanation.segments = (*plan)->segment_count();
    if (plan.ok()) explanation.segment_bytes = (*plan)->segment_bytes();
    return std::string(chosen.name);
  };
  if (choice->messages != nullptr) {
    explanation.algorithm = explanation.algorithm_registered = explanation.algorithm_huge_pages =
        describe_plan(*choice->messages, segment_bytes_of_messages(setting_.selector.rank_count));
    explain_messages(operation, algorithm, explanation);
    return explanation;
  }
  const schedule::Algorithm& elsewhere =
      choice->staged != nullptr ? *choice->staged : *choice->direct;
  explanation.algorithm = describe_plan(elsewhere, execution::Window::kHalfBytes);
  explain_mapped(operation, algorithm, *choice, explanation);
  return explanation;
}

void Planner::explain_messages(const OperationDescriptor& operation, std::string_view algorithm,
                               Explanation& explanation) const {
  for (const auto& candidate : selector_.candidates(operation, true)) {
    explanation.candidates.push_back({std::string(candidate.algorithm->name), candidate.seconds});
  }
  explanation.reason = algorithm.empty() ? "the model of the links finds it cheapest among those "
                                           "that keep the canonical order"
                                         : "it was asked for";
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
