// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// From a caller's buffers to a submission: arguments are checked, and what the schedules cannot do
// on the buffers as they are is left to a Packing.

#include <fmt/format.h>

#include "stretto/communicator/arguments.h"
#include "stretto/communicator/scheduled_communicator.h"

namespace stretto::communicator {
namespace {

// All shares of an operation, and this rank's.
struct Share {
  std::optional<execution::SharesView> shares;
  std::size_t count = 0;
  std::ptrdiff_t begin = 0;
  std::size_t whole = 0;
};

// `own` is what this rank's short buffer holds; with equal shares it says how long all are.
Share share_of(const Caller& caller, const std::vector<std::size_t>& counts, std::size_t own,
               int size) {
  Share share{.shares = shares_of(caller, counts, size)};
  const auto at = static_cast<std::size_t>(caller.rank);
  if (share.shares) {
    share.count = share.shares->counts[at];
    share.begin = static_cast<std::ptrdiff_t>(share_begin(*share.shares, caller.rank));
    share.whole = execution::total(share.shares->counts);
  } else {
    share.count = counts.empty() ? own : counts.front();
    share.begin = static_cast<std::ptrdiff_t>(share.count * at);
    share.whole = share.count * static_cast<std::size_t>(size);
  }
  return share;
}

std::uint64_t layout_of(const Share& share) {
  return share.shares ? execution::layout_hash(share.shares->counts) : 0;
}

// What the operation is, if the arguments are right.
OperationDescriptor checked(const Caller& caller, const Share& share, const ConstView& input,
                            const View& output, const ReduceScatterOptions& options) {
  check_dtypes(caller, input, output);
  check_count(caller, "output", output.count, share.count);
  check_count(caller, "input", input.count, share.whole);
  check_reduction(caller, options.op, input.dtype, options.factor);
  check_overlap(caller, input, output, -share.begin);
  return {.collective = Collective::reduce_scatter,
          .op = options.op,
          .dtype = input.dtype,
          .count = input.count,
          .layout = layout_of(share)};
}

OperationDescriptor checked(const Caller& caller, const Share& share, const ConstView& input,
                            const View& output, const AllGatherOptions&) {
  check_dtypes(caller, input, output);
  check_count(caller, "input", input.count, share.count);
  check_count(caller, "output", output.count, share.whole);
  check_overlap(caller, input, output, share.begin);
  return {.collective = Collective::all_gather,
          .dtype = input.dtype,
          .count = output.count,
          .layout = layout_of(share)};
}

}  // namespace

Work ScheduledCommunicator::all_reduce_views(const ConstView& input, const View& output,
                                             const AllReduceOptions& options) {
  const Caller caller{.rank = rank(), .operation = "all_reduce"};
  check_dtypes(caller, input, output);
  check_count(caller, "output", output.count, input.count);
  check_reduction(caller, options.op, input.dtype, options.factor);
  check_overlap(caller, input, output, 0);
  const OperationDescriptor operation{.collective = Collective::all_reduce,
                                      .op = options.op,
                                      .dtype = input.dtype,
                                      .count = input.count};
  if (options.factor == 1) {
    return submit_plain(operation, input.span(), output.span(), options.algorithm, options.timeout);
  }
  // The output can hold the scaled input: no scratch is needed.
  group::Group::Submission submission{
      .operation = operation, .input = output.span(), .output = output.span()};
  submission.packing =
      group::Packing{.source = input, .factor = options.factor, .place = output.data};
  return submit(std::move(submission), options.algorithm, options.timeout);
}

Work ScheduledCommunicator::reduce_views(const ConstView& input, const View& output,
                                         const ReduceOptions& options) {
  const Caller caller{.rank = rank(), .operation = "reduce"};
  check_root(caller, options.root, size());
  check_reduction(caller, options.op, input.dtype, options.factor);
  const bool is_root = rank() == options.root;
  if (is_root) {
    check_dtypes(caller, input, output);
    check_count(caller, "output", output.count, input.count);
    check_overlap(caller, input, output, 0);
  }
  const OperationDescriptor operation{.collective = Collective::reduce,
                                      .op = options.op,
                                      .dtype = input.dtype,
                                      .root = options.root.value(),
                                      .count = input.count};
  const ByteSpan result = is_root ? output.span() : ByteSpan();
  if (options.factor == 1) {
    return submit_plain(operation, input.span(), result, options.algorithm, options.timeout);
  }
  group::Group::Submission submission{.operation = operation, .output = result};
  submission.packing = group::Packing{.source = input, .factor = options.factor};
  return submit(std::move(submission), options.algorithm, options.timeout);
}

group::Group::Submission ScheduledCommunicator::prepare(const Caller& caller,
                                                        const ConstView& input, const View& output,
                                                        const ReduceScatterOptions& options) const {
  const Share share = share_of(caller, options.counts, output.count, size());
  group::Group::Submission submission{.operation = checked(caller, share, input, output, options),
                                      .input = input.span(),
                                      .output = output.span(),
                                      .shares = share.shares};
  if (options.factor != 1) {
    submission.packing = group::Packing{.source = input, .factor = options.factor};
    submission.input = {};
  }
  return submission;
}

group::Group::Submission ScheduledCommunicator::prepare(const Caller& caller,
                                                        const ConstView& input, const View& output,
                                                        const AllGatherOptions& options) const {
  const Share share = share_of(caller, options.counts, input.count, size());
  return {.operation = checked(caller, share, input, output, options),
          .input = input.span(),
          .output = output.span(),
          .shares = share.shares};
}

Work ScheduledCommunicator::reduce_scatter_views(const ConstView& input, const View& output,
                                                 const ReduceScatterOptions& options) {
  const Caller caller{.rank = rank(), .operation = "reduce_scatter"};
  if (!options.counts.empty() || options.factor != 1) {
    return submit(prepare(caller, input, output, options), options.algorithm, options.timeout);
  }
  const Share share = share_of(caller, {}, output.count, size());
  return submit_plain(checked(caller, share, input, output, options), input.span(), output.span(),
                      options.algorithm, options.timeout);
}

Work ScheduledCommunicator::all_gather_views(const ConstView& input, const View& output,
                                             const AllGatherOptions& options) {
  const Caller caller{.rank = rank(), .operation = "all_gather"};
  if (!options.counts.empty()) {
    return submit(prepare(caller, input, output, options), options.algorithm, options.timeout);
  }
  const Share share = share_of(caller, {}, input.count, size());
  return submit_plain(checked(caller, share, input, output, options), input.span(), output.span(),
                      options.algorithm, options.timeout);
}

Work ScheduledCommunicator::gather_views(const ConstView& input, const View& output,
                                         const GatherOptions& options) {
  const Caller caller{.rank = rank(), .operation = "gather"};
  check_root(caller, options.root, size());
  const Share share = share_of(caller, options.counts, input.count, size());
  check_count(caller, "input", input.count, share.count);
  const bool is_root = rank() == options.root;
  if (is_root) {
    check_dtypes(caller, input, output);
    check_count(caller, "output", output.count, share.whole);
    check_overlap(caller, input, output, share.begin);
  }
  return submit({.operation = {.collective = Collective::gather,
                               .dtype = input.dtype,
                               .root = options.root.value(),
                               .count = share.whole,
                               .layout = layout_of(share)},
                 .input = input.span(),
                 .output = is_root ? output.span() : ByteSpan(),
                 .shares = share.shares},
                options.algorithm, options.timeout);
}

Work ScheduledCommunicator::scatter_views(const ConstView& input, const View& output,
                                          const ScatterOptions& options) {
  const Caller caller{.rank = rank(), .operation = "scatter"};
  check_root(caller, options.root, size());
  const Share share = share_of(caller, options.counts, output.count, size());
  check_count(caller, "output", output.count, share.count);
  const bool is_root = rank() == options.root;
  if (is_root) {
    check_dtypes(caller, input, output);
    check_count(caller, "input", input.count, share.whole);
    check_overlap(caller, input, output, -share.begin);
  }
  return submit({.operation = {.collective = Collective::scatter,
                               .dtype = output.dtype,
                               .root = options.root.value(),
                               .count = share.whole,
                               .layout = layout_of(share)},
                 .input = is_root ? input.span() : ConstByteSpan(),
                 .output = output.span(),
                 .shares = share.shares},
                options.algorithm, options.timeout);
}

Work ScheduledCommunicator::all_to_all_views(const ConstView& input, const View& output,
                                             const AllToAllOptions& options) {
  const Caller caller{.rank = rank(), .operation = "all_to_all"};
  check_dtypes(caller, input, output);
  check(caller, options.send_counts.empty() == options.recv_counts.empty(),
        "either both lists of counts are given, or none");
  const execution::SharesView shares{.counts = options.send_counts,
                                     .received = options.recv_counts};
  OperationDescriptor operation{.collective = Collective::all_to_all, .dtype = input.dtype};
  if (shares.equal()) {
    if (input.count % static_cast<std::size_t>(size()) != 0) {
      refuse(caller,
             fmt::format("the input has {} elements, which cannot be divided among {} ranks",
                         input.count, size()));
    }
    check_count(caller, "output", output.count, input.count);
    operation.count = input.count;
  } else {
    // Other ranks may have lists that look equal, so equal counts are not looked for.
    (void)shares_of(caller, shares.counts, size());
    (void)shares_of(caller, shares.received, size());
    check_count(caller, "input", input.count, execution::total(shares.counts));
    check_count(caller, "output", output.count, execution::total(shares.received));
    const auto self = static_cast<std::size_t>(rank());
    check_count(caller, "share sent to oneself", shares.counts[self], shares.received[self]);
    operation.layout = 1;
  }
  check_overlap(caller, input, output, 0);
  group::Group::Submission submission{
      .operation = operation,
      .input = input.span(),
      .output = output.span(),
      .shares = shares.equal() ? std::nullopt : std::optional(shares)};
  if (input.bytes() > 0 && input.data == output.data) {
    submission.packing = group::Packing{.source = input};
    submission.input = {};
  }
  return submit(std::move(submission), options.algorithm, options.timeout);
}

Work ScheduledCommunicator::broadcast_view(const View& data, const BroadcastOptions& options) {
  const Caller caller{.rank = rank(), .operation = "broadcast"};
  check_root(caller, options.root, size());
  return submit_plain({.collective = Collective::broadcast,
                       .dtype = data.dtype,
                       .root = options.root.value(),
                       .count = data.count},
                      data.span(), data.span(), options.algorithm, options.timeout);
}

Work ScheduledCommunicator::barrier(const BarrierOptions& options) {
  return submit_plain({.collective = Collective::barrier}, {}, {}, options.algorithm,
                      options.timeout);
}

// Rank 0 hears from every rank directly, so it knows of each whether it has come.
void ScheduledCommunicator::monitored_barrier(const BarrierOptions& options) {
  submit({.operation = {.collective = Collective::barrier, .layout = kMonitoredLayout}},
         options.algorithm.empty() ? "direct" : options.algorithm, options.timeout)
      .wait();
}

}  // namespace stretto::communicator
