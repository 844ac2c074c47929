// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Turns a caller's buffers into calls of the backend: checks the arguments, and adds a Packing if a
// schedule cannot work on the buffers as they are.

#include "stretto/communicator/communicator.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "stretto/communicator/arguments.h"
#include "stretto/communicator/observation.h"

namespace stretto {

using namespace communicator;

namespace {

// The shares of all ranks, and this rank's share.
struct Share {
  std::optional<execution::SharesView> shares;
  std::size_t count = 0;
  std::ptrdiff_t begin = 0;
  std::size_t whole = 0;
};

// `own` is the length of this rank's short buffer. With equal shares all have this length.
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

// For operations that may be small: writes every field in its final place, see fast_lane.cc, Note
// [settled memory].
CollectiveCall call_of(Collective collective, DType dtype, std::size_t count) {
  CollectiveCall call;
  call.operation.collective = collective;
  call.operation.dtype = dtype;
  call.operation.count = count;
  return call;
}

CollectiveCall checked_call(const Caller& caller, int size, const ConstView& input,
                            const View& output, const ReduceScatterOptions& options) {
  const Share share = share_of(caller, options.counts, output.count, size);
  check_buffers(caller, input, share.whole, output, share.count, -share.begin);
  check_reduction(caller, options.op, input.dtype, options.factor);
  CollectiveCall call = call_of(Collective::reduce_scatter, input.dtype, input.count);
  call.operation.op = options.op;
  call.operation.layout = layout_of(share);
  call.input = input.span();
  call.output = output.span();
  if (share.shares) call.shares = share.shares;
  if (options.factor != 1) {
    call.packing = group::Packing{.parts = {.source = input, .factor = options.factor}};
    call.input = {};
  }
  return call;
}

CollectiveCall checked_call(const Caller& caller, int size, const ConstView& input,
                            const View& output, const AllGatherOptions& options) {
  const Share share = share_of(caller, options.counts, input.count, size);
  check_buffers(caller, input, share.count, output, share.whole, share.begin);
  CollectiveCall call = call_of(Collective::all_gather, input.dtype, output.count);
  call.operation.layout = layout_of(share);
  call.input = input.span();
  call.output = output.span();
  if (share.shares) call.shares = share.shares;
  return call;
}

template <class AnyOptions>
std::vector<CollectiveCall> checked_pairs(Caller caller, int size,
                                          std::span<const ConstView> inputs,
                                          std::span<const View> outputs,
                                          const AnyOptions& options) {
  check_count(caller, "list of outputs", outputs.size(), inputs.size());
  std::vector<CollectiveCall> calls;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    caller.entry = i;
    calls.push_back(checked_call(caller, size, inputs[i], outputs[i], options));
  }
  return calls;
}

void check_memory_of(Rank rank, const CollectiveCall& call) {
  bool lacks = lacks_memory(call.input) || lacks_memory(call.output);
  if (call.packing) {
    const auto also = [](const auto& view) { return lacks_memory(view.span()); };
    const BufferParts& parts = call.packing->parts;
    lacks = lacks || also(parts.source) || std::ranges::any_of(parts.more, also) ||
            std::ranges::any_of(parts.targets, also);
  }
  if (lacks) refuse_null({.rank = rank, .operation = name(call.operation.collective)});
}

}  // namespace

Communicator::Communicator(std::unique_ptr<ScheduledBackend> backend)
    : backend_(std::move(backend)),
      rank_(backend_->rank()),
      size_(backend_->size()),
      serial_(next_serial()) {}

Communicator::~Communicator() = default;

void Communicator::check_timeout(const std::optional<Duration>& timeout) const {
  if (!timeout || *timeout >= Duration::zero()) return;
  refuse(
      {.rank = rank(), .operation = "timeout"},
      fmt::format("{:g} s is negative; without one, the communicator's holds", seconds(*timeout)));
}

Work Communicator::submit(std::vector<CollectiveCall> calls, const std::string& algorithm,
                          const std::optional<Duration>& timeout) {
  check_timeout(timeout);
  if (calls.empty()) return Work();
  for (const CollectiveCall& call : calls) check_memory_of(rank(), call);
  return observation_ == nullptr ? backend_->submit(calls, algorithm, timeout)
                                 : observation_->submit(calls, algorithm, timeout);
}

Work Communicator::submit(CollectiveCall&& call, const std::string& algorithm,
                          const std::optional<Duration>& timeout) {
  check_timeout(timeout);
  check_memory_of(rank(), call);
  return observation_ == nullptr ? backend_->submit({&call, 1}, algorithm, timeout)
                                 : observation_->submit({&call, 1}, algorithm, timeout);
}

Work Communicator::all_reduce_views(const ConstView& input, const View& output,
                                    const AllReduceOptions& options) {
  const Caller caller{.rank = rank(), .operation = "all_reduce"};
  check_buffers(caller, input, input.count, output, input.count, 0);
  check_reduction(caller, options.op, input.dtype, options.factor);
  CollectiveCall call = call_of(Collective::all_reduce, input.dtype, input.count);
  call.operation.op = options.op;
  call.input = input.span();
  call.output = output.span();
  if (options.factor != 1) {
    // The output can hold the scaled input, so no scratch is needed.
    call.input = call.output;
    call.packing = group::Packing{.parts = {.source = input, .factor = options.factor},
                                  .destination = output.data};
  }
  return submit(std::move(call), options.algorithm, options.timeout);
}

Work Communicator::reduce_views(const ConstView& input, const View& output,
                                const ReduceOptions& options) {
  const Caller caller{.rank = rank(), .operation = "reduce"};
  check_root(caller, options.root, size());
  check_reduction(caller, options.op, input.dtype, options.factor);
  const bool is_root = rank() == options.root;
  if (is_root) check_buffers(caller, input, input.count, output, input.count, 0);
  CollectiveCall call({.collective = Collective::reduce,
                       .op = options.op,
                       .dtype = input.dtype,
                       .root = options.root.value(),
                       .count = input.count},
                      input.span(), is_root ? output.span() : ByteSpan());
  if (options.factor != 1) {
    call.packing = group::Packing{.parts = {.source = input, .factor = options.factor}};
    call.input = {};
  }
  return submit(std::move(call), options.algorithm, options.timeout);
}

Work Communicator::reduce_scatter_views(const ConstView& input, const View& output,
                                        const ReduceScatterOptions& options) {
  const Caller caller{.rank = rank(), .operation = "reduce_scatter"};
  return submit(checked_call(caller, size(), input, output, options), options.algorithm,
                options.timeout);
}

Work Communicator::all_gather_views(const ConstView& input, const View& output,
                                    const AllGatherOptions& options) {
  const Caller caller{.rank = rank(), .operation = "all_gather"};
  return submit(checked_call(caller, size(), input, output, options), options.algorithm,
                options.timeout);
}

Work Communicator::reduce_scatter_coalesced(std::span<const ConstView> inputs,
                                            std::span<const View> outputs,
                                            const ReduceScatterOptions& options) {
  const Caller caller{.rank = rank(), .operation = "reduce_scatter_coalesced"};
  return submit(checked_pairs(caller, size(), inputs, outputs, options), options.algorithm,
                options.timeout);
}

Work Communicator::all_gather_coalesced(std::span<const ConstView> inputs,
                                        std::span<const View> outputs,
                                        const AllGatherOptions& options) {
  const Caller caller{.rank = rank(), .operation = "all_gather_coalesced"};
  return submit(checked_pairs(caller, size(), inputs, outputs, options), options.algorithm,
                options.timeout);
}

Work Communicator::gather_views(const ConstView& input, const View& output,
                                const GatherOptions& options) {
  const Caller caller{.rank = rank(), .operation = "gather"};
  check_root(caller, options.root, size());
  const Share share = share_of(caller, options.counts, input.count, size());
  check_count(caller, "input", input.count, share.count);
  const bool is_root = rank() == options.root;
  if (is_root) check_buffers(caller, input, share.count, output, share.whole, share.begin);
  return submit(CollectiveCall({.collective = Collective::gather,
                                .dtype = input.dtype,
                                .root = options.root.value(),
                                .count = share.whole,
                                .layout = layout_of(share)},
                               input.span(), is_root ? output.span() : ByteSpan(), share.shares),
                options.algorithm, options.timeout);
}

Work Communicator::scatter_views(const ConstView& input, const View& output,
                                 const ScatterOptions& options) {
  const Caller caller{.rank = rank(), .operation = "scatter"};
  check_root(caller, options.root, size());
  const Share share = share_of(caller, options.counts, output.count, size());
  check_count(caller, "output", output.count, share.count);
  const bool is_root = rank() == options.root;
  if (is_root) check_buffers(caller, input, share.whole, output, share.count, -share.begin);
  return submit(
      CollectiveCall({.collective = Collective::scatter,
                      .dtype = output.dtype,
                      .root = options.root.value(),
                      .count = share.whole,
                      .layout = layout_of(share)},
                     is_root ? input.span() : ConstByteSpan(), output.span(), share.shares),
      options.algorithm, options.timeout);
}

Work Communicator::all_to_all_views(const ConstView& input, const View& output,
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
    // Does not treat equal counts as equal shares, as other ranks may have unequal ones.
    (void)shares_of(caller, shares.counts, size());
    (void)shares_of(caller, shares.received, size());
    check_count(caller, "input", input.count, execution::total(shares.counts));
    check_count(caller, "output", output.count, execution::total(shares.received));
    const auto self = static_cast<std::size_t>(rank());
    check_count(caller, "share sent to oneself", shares.counts[self], shares.received[self]);
    operation.layout = 1;
  }
  check_overlap(caller, input, output, 0);
  CollectiveCall call(operation, input.span(), output.span(),
                      shares.equal() ? std::nullopt : std::optional(shares));
  if (input.bytes() > 0 && input.data == output.data) {
    call.packing = group::Packing{.parts = {.source = input}};
    call.input = {};
  }
  return submit(std::move(call), options.algorithm, options.timeout);
}

Work Communicator::broadcast_view(const View& data, const BroadcastOptions& options) {
  const Caller caller{.rank = rank(), .operation = "broadcast"};
  check_root(caller, options.root, size());
  CollectiveCall call = call_of(Collective::broadcast, data.dtype, data.count);
  call.operation.root = options.root.value();
  call.input = data.span();
  call.output = data.span();
  return submit(std::move(call), options.algorithm, options.timeout);
}

Work Communicator::barrier(const BarrierOptions& options) {
  return submit(call_of(Collective::barrier, DType::u8, 0), options.algorithm, options.timeout);
}

// With "direct", rank 0 hears from every rank directly, so it knows which ranks have come.
void Communicator::monitored_barrier(const BarrierOptions& options) {
  submit(CollectiveCall({.collective = Collective::barrier, .layout = kMonitoredLayout}),
         options.algorithm.empty() ? "direct" : options.algorithm, options.timeout)
      .wait();
}

Memory Communicator::allocate_bytes(std::size_t bytes, std::optional<int> device) {
  return backend_->allocate(bytes, device);
}

Memory Communicator::allocate_elements(std::size_t count, std::size_t element_bytes,
                                       std::optional<int> device) {
  if (count > std::numeric_limits<std::size_t>::max() / element_bytes) {
    refuse({.rank = rank(), .operation = "allocate"},
           fmt::format("too many elements: {} of {} bytes", count, element_bytes));
  }
  return allocate_bytes(count * element_bytes, device);
}

void Communicator::note(std::string_view activity) { backend_->note(activity); }

void Communicator::poll() { backend_->poll(); }

bool Communicator::has_progress_thread() const { return backend_->has_progress_thread(); }

std::optional<int> Communicator::device() const {
  const DeviceOperations* const devices = backend_->devices();
  return devices == nullptr ? std::nullopt : std::optional(devices->device());
}

Rank Communicator::job_rank(Rank rank) const {
  check_rank({.rank = rank_, .operation = "job_rank"}, rank, size());
  return backend_->job_rank(rank);
}

std::optional<int> Communicator::device_of(const void* data) const {
  const DeviceOperations* const devices = backend_->devices();
  const int number = devices == nullptr ? -1 : devices->device_of(data);
  return number < 0 ? std::nullopt : std::optional(number);
}

bool Communicator::is_device_memory(const void* data) const {
  const DeviceOperations* const devices = backend_->devices();
  return devices != nullptr && devices->takes(data);
}

bool Communicator::maps_devices() const { return backend_->maps_devices(); }

void Communicator::observe(std::shared_ptr<OperationObserver> observer) {
  if (observer == nullptr) refuse({.rank = rank(), .operation = "observe"}, "there is no observer");
  observation_ =
      std::make_unique<Observation>(*backend_, std::move(observer), std::move(observation_));
}

void Communicator::abort(const std::string& reason) {
  observation_ == nullptr ? backend_->abort(reason) : observation_->abort(reason);
}

bool Communicator::has_failed() const { return backend_->has_failed(); }

std::vector<std::int32_t> Communicator::hosts() const { return backend_->hosts(); }

std::string Communicator::describe_links() const {
  std::string text;
  for (std::int32_t r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    text += fmt::format("{}{} to rank {}", text.empty() ? "" : "; ", backend_->link_name(r), r);
  }
  return text.empty() ? "no other ranks" : text;
}

std::string Communicator::describe_link(Rank other) const {
  check_rank({.rank = rank(), .operation = "describe_link"}, other, size());
  return backend_->link_name(other);
}

Explanation Communicator::explain(Collective collective, DType dtype, std::size_t count) const {
  OperationDescriptor operation{.collective = collective, .dtype = dtype, .count = count};
  if (has_root(collective)) operation.root = 0;
  return backend_->explain(operation);
}

}  // namespace stretto
