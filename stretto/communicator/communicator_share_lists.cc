// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Collectives whose shares are separate buffers. They pass through scratch in which the shares are
// contiguous.

#include <type_traits>

#include "stretto/base/rank_vector.h"
#include "stretto/communicator/arguments.h"
#include "stretto/communicator/collective_call.h"
#include "stretto/communicator/communicator.h"

namespace stretto {

using namespace communicator;

namespace {

// The lengths of a list that has a buffer for each rank. All must have the dtype `other`.
template <class AnyView>
RankVector<std::size_t> lengths_of(Caller caller, std::span<const AnyView> list, int size,
                                   DType other) {
  constexpr bool kAreInputs = std::is_same_v<AnyView, ConstView>;
  check_count(caller, "list", list.size(), static_cast<std::size_t>(size));
  RankVector<std::size_t> counts;
  for (const AnyView& view : list) {
    caller.entry = counts.size();
    check_dtypes(caller, ConstView{nullptr, 0, kAreInputs ? view.dtype : other},
                 View{nullptr, 0, kAreInputs ? other : view.dtype});
    counts.push_back(view.count);
  }
  return counts;
}

// The counts for a rank that has no list of buffers.
RankVector<std::size_t> counts_or_equal(const std::vector<std::size_t>& counts, std::size_t own,
                                        int size) {
  return counts.empty() ? std::vector<std::size_t>(static_cast<std::size_t>(size), own) : counts;
}

group::Packing packing_of(std::span<const ConstView> inputs, std::span<const View> outputs,
                          double factor = 1) {
  BufferParts parts{.factor = factor, .targets = {outputs.begin(), outputs.end()}};
  if (!inputs.empty()) {
    parts.source = inputs.front();
    parts.more = {inputs.begin() + 1, inputs.end()};
  }
  return {.parts = std::move(parts), .apart = true};
}

CollectiveCall call_of(const OperationDescriptor& head, const Caller& caller,
                       std::span<const std::size_t> counts) {
  CollectiveCall call(head);
  call.shares = shares_of(caller, counts, static_cast<int>(counts.size()));
  call.operation.count = execution::total(counts);
  if (call.shares) call.operation.layout = execution::layout_hash(counts);
  return call;
}

}  // namespace

Work Communicator::all_gather_list(ConstView input, std::span<const View> outputs,
                                   const AllGatherOptions& options) {
  const Caller caller{.rank = rank(), .operation = "all_gather_list"};
  const auto counts = lengths_of(caller, outputs, size(), input.dtype);
  check_count(caller, "input", input.count, counts[rank()]);
  auto call = call_of({.collective = Collective::all_gather, .dtype = input.dtype}, caller, counts);
  call.input = input.span();
  call.packing = packing_of({}, outputs);
  return submit(std::move(call), options.algorithm, options.timeout);
}

Work Communicator::reduce_scatter_list(std::span<const ConstView> inputs, View output,
                                       const ReduceScatterOptions& options) {
  const Caller caller{.rank = rank(), .operation = "reduce_scatter_list"};
  const auto counts = lengths_of(caller, inputs, size(), output.dtype);
  check_count(caller, "output", output.count, counts[rank()]);
  check_reduction(caller, options.op, output.dtype, options.factor);
  auto call =
      call_of({.collective = Collective::reduce_scatter, .op = options.op, .dtype = output.dtype},
              caller, counts);
  call.packing = packing_of(inputs, {}, options.factor);
  call.output = output.span();
  return submit(std::move(call), options.algorithm, options.timeout);
}

Work Communicator::all_to_all_list(std::span<const ConstView> inputs, std::span<const View> outputs,
                                   const AllToAllOptions& options) {
  const Caller caller{.rank = rank(), .operation = "all_to_all_list"};
  check(caller, !inputs.empty(), "the list of inputs is empty");
  const DType dtype = inputs.front().dtype;
  const auto received = lengths_of(caller, outputs, size(), dtype);
  const auto counts = lengths_of(caller, inputs, size(), dtype);
  check_count(caller, "share sent to oneself", counts[rank()], received[rank()]);
  // Does not treat equal counts as equal shares, as other ranks may have unequal ones.
  (void)shares_of(caller, counts, size());
  (void)shares_of(caller, received, size());
  CollectiveCall call({.collective = Collective::all_to_all, .dtype = dtype, .layout = 1}, {}, {},
                      execution::SharesView{.counts = counts, .received = received});
  call.packing = packing_of(inputs, outputs);
  return submit(std::move(call), options.algorithm, options.timeout);
}

Work Communicator::gather_list(ConstView input, std::span<const View> outputs,
                               const GatherOptions& options) {
  const Caller caller{.rank = rank(), .operation = "gather_list"};
  check_root(caller, options.root, size());
  const bool is_root = rank() == options.root;
  const auto counts = is_root ? lengths_of(caller, outputs, size(), input.dtype)
                              : counts_or_equal(options.counts, input.count, size());
  check_count(caller, "list of counts", counts.size(), static_cast<std::size_t>(size()));
  check_count(caller, "input", input.count, counts[rank()]);
  auto call = call_of(
      {.collective = Collective::gather, .dtype = input.dtype, .root = options.root.value()},
      caller, counts);
  call.input = input.span();
  if (is_root) call.packing = packing_of({}, outputs);
  return submit(std::move(call), options.algorithm, options.timeout);
}

Work Communicator::scatter_list(std::span<const ConstView> inputs, View output,
                                const ScatterOptions& options) {
  const Caller caller{.rank = rank(), .operation = "scatter_list"};
  check_root(caller, options.root, size());
  const bool is_root = rank() == options.root;
  const auto counts = is_root ? lengths_of(caller, inputs, size(), output.dtype)
                              : counts_or_equal(options.counts, output.count, size());
  check_count(caller, "list of counts", counts.size(), static_cast<std::size_t>(size()));
  check_count(caller, "output", output.count, counts[rank()]);
  auto call = call_of(
      {.collective = Collective::scatter, .dtype = output.dtype, .root = options.root.value()},
      caller, counts);
  call.output = output.span();
  if (is_root) call.packing = packing_of(inputs, {});
  return submit(std::move(call), options.algorithm, options.timeout);
}

}  // namespace stretto
