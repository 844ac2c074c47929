// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/c10d/process_group.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "stretto/base/stream_guard.h"
#include "stretto/c10d/errors.h"
#include "stretto/c10d/sparse_tensors.h"
#include "stretto/c10d/torch_version.h"
#include "stretto/torch_device/streams.h"

namespace stretto::c10d_backend {
namespace {

using ::c10d::OpType;

struct Reduction {
  ReduceOp op = ReduceOp::sum;
  double factor = 1;
};

double factor_of(const ::c10d::ReduceOp& op) {
  const auto* supplement = dynamic_cast<PreMulSumSupplement*>(op.supplement_.get());
  if (supplement == nullptr) refuse("PREMUL_SUM needs a factor: make it by _make_nccl_premul_sum");
  return supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>()
                                             : supplement->double_factor;
}

Reduction reduction_of(const ::c10d::ReduceOp& op) {
  switch (op.op_) {
    case ::c10d::ReduceOp::SUM:
      return {ReduceOp::sum};
    case ::c10d::ReduceOp::AVG:
      return {ReduceOp::mean};
    case ::c10d::ReduceOp::PRODUCT:
      return {ReduceOp::product};
    case ::c10d::ReduceOp::MIN:
      return {ReduceOp::min};
    case ::c10d::ReduceOp::MAX:
      return {ReduceOp::max};
    case ::c10d::ReduceOp::BAND:
      return {ReduceOp::bit_and};
    case ::c10d::ReduceOp::BOR:
      return {ReduceOp::bit_or};
    case ::c10d::ReduceOp::BXOR:
      return {ReduceOp::bit_xor};
    case ::c10d::ReduceOp::PREMUL_SUM:
      return {ReduceOp::sum, factor_of(op)};
    default:
      refuse("ReduceOp number {} is unknown to stretto", static_cast<int>(op.op_));
  }
}

at::Tensor& only(std::vector<at::Tensor>& list, std::string_view operation) {
  if (list.size() != 1) refuse("{}: wants one tensor, got {}", operation, list.size());
  return list.front();
}

// The only list in `lists`, which must have a tensor for each rank.
Tensors& only_list(TensorLists& lists, std::string_view operation, int size) {
  if (lists.size() != 1 || lists.front().size() != static_cast<std::size_t>(size)) {
    refuse("{}: wants one list of {} tensors, one for each rank, got {}", operation, size,
           lists.empty() ? std::string("none") : fmt::format("{}", lists.front().size()));
  }
  return lists.front();
}

Rank rank_of(int64_t number, int size, std::string_view what) {
  if (number < 0 || number >= size) {
    refuse("{} {} is not one of the {} ranks of this group", what, number, size);
  }
  return static_cast<int>(number);
}

// Each rank's part of a tensor whose view has `count` elements, in such elements. `splits` are the
// rows of the first dimension for each rank; empty: equal parts.
std::vector<std::size_t> split_counts(const at::Tensor& tensor, std::size_t count,
                                      const std::vector<int64_t>& splits, int size,
                                      std::string_view what) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const int64_t row = rows == 0 ? 0 : static_cast<int64_t>(count) / rows;
  if (splits.empty()) {
    if (rows % size != 0) {
      refuse("all_to_all_single: the first dimension of the {} is {}, which {} ranks do not divide",
             what, rows, size);
    }
    return std::vector<std::size_t>(size, static_cast<std::size_t>(rows / size * row));
  }
  std::vector<std::size_t> counts;
  counts.reserve(splits.size());
  int64_t sum = 0;
  for (const int64_t split : splits) {
    if (split < 0) refuse("all_to_all_single: split size {} is negative", split);
    sum += split;
    counts.push_back(static_cast<std::size_t>(split * row));
  }
  if (sum != rows || splits.size() != static_cast<std::size_t>(size)) {
    refuse(
        "all_to_all_single: the {}'s {} split sizes add up to {}, but there are {} ranks and its "
        "first dimension is {}",
        what, splits.size(), sum, size, rows);
  }
  return counts;
}

}  // namespace

stretto::Work ProcessGroupStretto::submit_recorded(const Start& what, uint64_t& record_number,
                                                   Submit submit) {
  communicator::FlightEntry entry = make_entry(what);
  Membership& members = *what.tensors.members;
  Communicator& comm = *members.communicator;
  if (what.blocks) record_number = members.record(entry);
  try {
    what.tensors.wait_for_caller();
    const StreamGuard behind(what.tensors.stream_handle());
    if (what.blocks) PendingWorks::drive_all_but(&members.shared->pending);
    stretto::Work submitted = submit(comm, duration_of(entry.timeout));
    if (submitted.is_captured() && what.tensors.has_copies()) submitted.wait();
    if (what.blocks) return submitted;
    const bool is_over = has_ended_well(submitted) && !what.tensors.has_copies();
    if (is_over) entry.end(true);
    const uint64_t number = members.record(entry);
    if (!is_over) record_number = number;
    return submitted;
  } catch (const Error& error) {
    // If the group goes on, nothing has been submitted, perhaps on this rank only. The call gets no
    // number then, so that later numbers are those of the other ranks.
    const bool is_counted = comm.has_failed();
    if (!what.blocks && is_counted) record_number = members.record(entry);
    flight_entries().end(record_number, false);
    if (is_counted) members.shared->note_failure(error.status());
    throw_for_torch(members.shared->told(error.status()));
  } catch (...) {
    flight_entries().end(record_number, false);
    throw;
  }
}

WorkPtr ProcessGroupStretto::start(const Start& what, Submit submit) {
  uint64_t record_number = 0;
  const std::shared_ptr<Shared>& shared = what.tensors.members->shared;
  const TimePoint started = onCompletionHook_ != nullptr ? Clock::now() : TimePoint();
  std::vector<std::weak_ptr<InFlight>> before;
  if (what.type == OpType::BARRIER) before = shared->pending.list_collectives();
  stretto::Work submitted = submit_recorded(what, record_number, submit);
  const std::optional<c10::Stream> stream =
      submitted.is_captured() ? what.tensors.stream() : what.tensors.copying_stream();
  std::shared_ptr<OperationTensors> buffers;
  if (what.tensors.has_copies() || !submitted.duration()) {
    OperationTensors& taken = what.tensors;  // Not the members: it must not keep them.
    buffers = std::make_shared<OperationTensors>(std::move(taken));
    if (buffers->has_copies()) {
      submitted = std::move(submitted).then([buffers] { buffers->write_back(); });
    }
  }
  auto operation = std::make_shared<InFlight>(std::move(submitted), what.results,
                                              std::move(buffers), record_number, shared, stream);
  if (what.type == OpType::BARRIER) operation->before = std::move(before);
  auto work = c10::make_intrusive<WorkStretto>(what.tensors.rank(), what.type, what.title,
                                               what.inputs, operation, shared);
  if (!operation->has_ended()) shared->pending.add(operation, !::c10d::isP2POp(what.type));
  if (onCompletionHook_ != nullptr) tell_hook(operation, what.type, started);
  if (const auto batch = batch_of_thread()) batch->add(work);
  return work;
}

WorkPtr ProcessGroupStretto::broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options) {
  MemberTensors held = tensors_of_operation();
  at::Tensor& tensor = only(tensors, "broadcast");
  const Rank root = rank_of(options.rootRank, held.size(), "broadcast: source");
  const View data = root == Rank(held.rank()) ? held.input(tensor) : held.output(tensor);
  return start({OpType::BROADCAST, "stretto:broadcast", options.timeout, held, tensors, tensors},
               [&](Communicator& comm, Duration timeout) {
                 return comm.broadcast(data, {.root = root, .timeout = timeout});
               });
}

WorkPtr ProcessGroupStretto::allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options) {
  at::Tensor& tensor = only(tensors, "all_reduce");
  if (tensor.is_sparse()) return allreduce_sparse(tensors, options);
  MemberTensors held = tensors_of_operation(Use::reduced);
  const View data = held.in_place(tensor);
  const Reduction reduction = reduction_of(options.reduceOp);
  return start({OpType::ALLREDUCE, "stretto:all_reduce", options.timeout, held, tensors, tensors},
               [&](Communicator& comm, Duration timeout) {
                 return comm.all_reduce(
                     data, {.op = reduction.op, .factor = reduction.factor, .timeout = timeout});
               });
}

// The operation has ended when this returns: the number of rows of the result is known only then.
WorkPtr ProcessGroupStretto::allreduce_sparse(Tensors& tensors,
                                              const ::c10d::AllreduceOptions& options) {
  const at::NoGradGuard no_grad;
  at::Tensor& tensor = only(tensors, "all_reduce of sparse tensors");
  if (!tensor.device().is_cpu() && !has_addresses(tensor.device())) {
    refuse("all_reduce of sparse tensors: this one is on {}; copy it to the CPU",
           tensor.device().str());
  }
  const Reduction reduction = reduction_of(options.reduceOp);
  const bool is_sum = reduction.op == ReduceOp::sum || reduction.op == ReduceOp::mean;
  if (!has_sparse_sum(tensor.scalar_type()) || !is_sum || reduction.factor != 1) {
    refuse(
        "all_reduce of sparse tensors (this one is of {}): only SUM and AVG, of float32, float64, "
        "int32 and int64; make the tensor dense: to_dense()",
        c10::toString(tensor.scalar_type()));
  }
  MemberTensors held = tensors_of_operation();
  return start({.type = OpType::_ALLREDUCE_SPARSE,
                .title = "stretto:all_reduce",
                .timeout = options.timeout,
                .tensors = held,
                .inputs = tensors,
                .results = tensors,
                .blocks = true},
               [&](Communicator& comm, Duration timeout) {
                 at::Tensor on_host = tensor.cpu();  // Itself, if it is there.
                 all_reduce_sparse(comm, on_host, reduction.op, timeout);
                 if (!on_host.is_same(tensor)) tensor.copy_(on_host);
                 return stretto::Work();
               });
}

WorkPtr ProcessGroupStretto::allreduce_coalesced(Tensors& tensors,
                                                 const ::c10d::AllreduceCoalescedOptions& options) {
  MemberTensors held = tensors_of_operation(Use::reduced);
  std::vector<View> views;
  for (const at::Tensor& tensor : tensors) views.push_back(held.in_place(tensor));
  const Reduction reduction = reduction_of(options.reduceOp);
  const bool is_each_alone = held.are_mapped();
  return start({OpType::ALLREDUCE_COALESCED, "stretto:allreduce_coalesced", options.timeout, held,
                tensors, tensors},
               [&](Communicator& comm, Duration timeout) {
                 const stretto::AllReduceOptions ours = {
                     .op = reduction.op, .factor = reduction.factor, .timeout = timeout};
                 if (!is_each_alone) return comm.all_reduce_coalesced(views, ours);
                 return submit_each(comm, views.size(),
                                    [&](std::size_t i) { return comm.all_reduce(views[i], ours); });
               });
}

WorkPtr ProcessGroupStretto::reduce(Tensors& tensors, const ::c10d::ReduceOptions& options) {
  MemberTensors held = tensors_of_operation(Use::reduced);
  at::Tensor& tensor = only(tensors, "reduce");
  const Rank root = rank_of(options.rootRank, held.size(), "reduce: destination");
  const bool is_root = root == Rank(held.rank());
  const View output = is_root ? held.in_place(tensor) : View();
  const ConstView input = is_root ? ConstView(output) : held.input(tensor);
  const Reduction reduction = reduction_of(options.reduceOp);
  return start(
      {OpType::REDUCE, "stretto:reduce", options.timeout, held, tensors, tensors},
      [&](Communicator& comm, Duration timeout) {
        return comm.reduce(
            input, output,
            {.op = reduction.op, .root = root, .factor = reduction.factor, .timeout = timeout});
      });
}

WorkPtr ProcessGroupStretto::allgather(TensorLists& outputs, Tensors& inputs,
                                       const ::c10d::AllgatherOptions& options) {
  MemberTensors held = tensors_of_operation();
  const Tensors& list = only_list(outputs, "all_gather", held.size());
  const ConstView input = held.input(only(inputs, "all_gather"));
  const std::vector<View> views = held.outputs(list);
  return start({OpType::ALLGATHER, "stretto:all_gather", options.timeout, held, inputs, list},
               [&](Communicator& comm, Duration timeout) {
                 return comm.all_gather_list(input, views, {.timeout = timeout});
               });
}

WorkPtr ProcessGroupStretto::_allgather_base(at::Tensor& output, at::Tensor& input,
                                             const ::c10d::AllgatherOptions& options) {
  MemberTensors held = tensors_of_operation();
  const ConstView from = held.input(input);
  const View to = held.output(output);
  return start(
      {OpType::_ALLGATHER_BASE, "stretto:_all_gather_base", options.timeout, held, input, output},
      [&](Communicator& comm, Duration timeout) {
        return comm.all_gather(from, to, {.timeout = timeout});
      });
}

WorkPtr ProcessGroupStretto::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                 const ::c10d::AllgatherOptions& options) {
  MemberTensors held = tensors_of_operation();
  if (outputs.size() != static_cast<std::size_t>(held.size())) {
    refuse("all_gather_coalesced: wants a list of tensors from each of {} ranks, got {}",
           held.size(), outputs.size());
  }
  Tensors results;
  std::vector<Tensors> lists(inputs.size());
  for (const Tensors& of_rank : outputs) {
    if (of_rank.size() != inputs.size()) {
      refuse("all_gather_coalesced: {} inputs, but {} outputs from a rank", inputs.size(),
             of_rank.size());
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) lists[i].push_back(of_rank[i]);
    results.insert(results.end(), of_rank.begin(), of_rank.end());
  }
  std::vector<std::vector<View>> views;
  for (const Tensors& list : lists) views.push_back(held.outputs(list));
  const std::vector<ConstView> sources = held.inputs(inputs);
  return start({OpType::ALLGATHER_COALESCED, "stretto:ALLGATHER_coalesced", options.timeout, held,
                inputs, results},
               [&](Communicator& comm, Duration timeout) {
                 return submit_each(comm, sources.size(), [&](std::size_t i) {
                   return comm.all_gather_list(sources[i], views[i], {.timeout = timeout});
                 });
               });
}

WorkPtr ProcessGroupStretto::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const ::c10d::AllgatherOptions& options) {
  MemberTensors held = tensors_of_operation();
  const std::vector<ConstView> from = held.inputs(inputs);
  const std::vector<View> to = held.outputs(outputs);
  return start({OpType::COALESCED, "stretto:all_gather_into_tensor_coalesced", options.timeout,
                held, inputs, outputs},
               [&](Communicator& comm, Duration timeout) {
                 return comm.all_gather_coalesced(from, to, {.timeout = timeout});
               });
}

WorkPtr ProcessGroupStretto::gather(TensorLists& outputs, Tensors& inputs,
                                    const ::c10d::GatherOptions& options) {
  MemberTensors held = tensors_of_operation();
  const Rank root = rank_of(options.rootRank, held.size(), "gather: destination");
  const ConstView input = held.input(only(inputs, "gather"));
  std::vector<View> views;
  Tensors results;
  if (root == Rank(held.rank())) {
    results = only_list(outputs, "gather", held.size());
    views = held.outputs(results);
  } else if (!outputs.empty() && !outputs.front().empty()) {
    refuse("gather: only the destination, rank {}, takes a list of outputs", root.value());
  }
  return start({OpType::GATHER, "stretto:gather", options.timeout, held, inputs, results},
               [&](Communicator& comm, Duration timeout) {
                 return comm.gather_list(input, views, {.root = root, .timeout = timeout});
               });
}

WorkPtr ProcessGroupStretto::gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                const ::c10d::GatherOptions& options) {
  MemberTensors held = tensors_of_operation();
  const Rank root = rank_of(options.rootRank, held.size(), "gather: destination");
  const bool is_root = root == Rank(held.rank());
  const ConstView from = held.input(input);
  const View to = is_root ? held.output(output) : View();
  const at::TensorList results = is_root ? at::TensorList(output) : at::TensorList();
  return start({OpType::GATHER, "stretto:gather", options.timeout, held, input, results},
               [&](Communicator& comm, Duration timeout) {
                 return comm.gather(from, to, {.root = root, .timeout = timeout});
               });
}

WorkPtr ProcessGroupStretto::scatter(Tensors& outputs, TensorLists& inputs,
                                     const ::c10d::ScatterOptions& options) {
  MemberTensors held = tensors_of_operation();
  const Rank root = rank_of(options.rootRank, held.size(), "scatter: source");
  const View output = held.output(only(outputs, "scatter"));
  std::vector<ConstView> views;
  if (root == Rank(held.rank())) {
    views = held.inputs(only_list(inputs, "scatter", held.size()));
  } else if (!inputs.empty() && !inputs.front().empty()) {
    refuse("scatter: only the source, rank {}, takes a list of inputs", root.value());
  }
  return start({OpType::SCATTER, "stretto:scatter", options.timeout, held, outputs, outputs},
               [&](Communicator& comm, Duration timeout) {
                 return comm.scatter_list(views, output, {.root = root, .timeout = timeout});
               });
}

WorkPtr ProcessGroupStretto::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                            const ::c10d::ReduceScatterOptions& options) {
  MemberTensors held = tensors_of_operation(Use::reduced);
  const Tensors& list = only_list(inputs, "reduce_scatter", held.size());
  const View output = held.output(only(outputs, "reduce_scatter"));
  const std::vector<ConstView> views = held.inputs(list);
  const Reduction reduction = reduction_of(options.reduceOp);
  return start(
      {OpType::REDUCE_SCATTER, "stretto:reduce_scatter", options.timeout, held, list, outputs},
      [&](Communicator& comm, Duration timeout) {
        return comm.reduce_scatter_list(
            views, output, {.op = reduction.op, .factor = reduction.factor, .timeout = timeout});
      });
}

WorkPtr ProcessGroupStretto::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                  const ::c10d::ReduceScatterOptions& options) {
  Tensors outputs{output};
  Tensors inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

WorkPtr ProcessGroupStretto::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const ::c10d::ReduceScatterOptions& options) {
  MemberTensors held = tensors_of_operation(Use::reduced);
  const std::vector<ConstView> from = held.inputs(inputs);
  const std::vector<View> to = held.outputs(outputs);
  const Reduction reduction = reduction_of(options.reduceOp);
  const bool single = inputs.size() == 1 && outputs.size() == 1;
  const OpType type = single ? OpType::_REDUCE_SCATTER_BASE : kReduceScatterTensorCoalesced;
  const char* const title =
      single ? "stretto:_reduce_scatter_base" : "stretto:reduce_scatter_tensor_coalesced";
  return start({type, title, options.timeout, held, inputs, outputs},
               [&](Communicator& comm, Duration timeout) {
                 const stretto::ReduceScatterOptions ours = {
                     .op = reduction.op, .factor = reduction.factor, .timeout = timeout};
                 if (single) return comm.reduce_scatter(from.front(), to.front(), ours);
                 return comm.reduce_scatter_coalesced(from, to, ours);
               });
}

WorkPtr ProcessGroupStretto::alltoall_base(at::Tensor& output, at::Tensor& input,
                                           std::vector<int64_t>& output_splits,
                                           std::vector<int64_t>& input_splits,
                                           const ::c10d::AllToAllOptions& options) {
  MemberTensors held = tensors_of_operation();
  const ConstView from = held.input(input);
  const View to = held.output(output);
  const auto sent = split_counts(input, from.count, input_splits, held.size(), "input");
  const auto received = split_counts(output, to.count, output_splits, held.size(), "output");
  stretto::AllToAllOptions ours;
  // On one host, equal parts need no messages. So ranks that give sizes must be told from those
  // that do not, which would otherwise have to know of the others before they begin.
  if (!input_splits.empty() || !output_splits.empty()) {
    ours.send_counts = sent;
    ours.recv_counts = received;
  }
  return start({OpType::ALLTOALL_BASE, "stretto:all_to_all", options.timeout, held, input, output},
               [&](Communicator& comm, Duration timeout) {
                 ours.timeout = timeout;
                 return comm.all_to_all(from, to, ours);
               });
}

WorkPtr ProcessGroupStretto::alltoall(Tensors& outputs, Tensors& inputs,
                                      const ::c10d::AllToAllOptions& options) {
  MemberTensors held = tensors_of_operation();
  const std::vector<ConstView> from = held.inputs(inputs);
  const std::vector<View> to = held.outputs(outputs);
  return start({OpType::ALLTOALL, "stretto:all_to_all", options.timeout, held, inputs, outputs},
               [&](Communicator& comm, Duration timeout) {
                 return comm.all_to_all_list(from, to, {.timeout = timeout});
               });
}

WorkPtr ProcessGroupStretto::send(Tensors& tensors, int destination, int tag) {
  MemberTensors held = tensors_of_message();
  const ConstView data = held.input(only(tensors, "send"));
  const Rank to = rank_of(destination, held.size(), "send: destination");
  return start(
      {OpType::SEND, "stretto:send", ::c10d::kUnsetTimeout, held, tensors, {}, destination},
      [&](Communicator& comm, Duration timeout) {
        return comm.send(data, {.to = to, .tag = tag, .timeout = timeout});
      });
}

WorkPtr ProcessGroupStretto::receive(Tensors& tensors, int source, int tag, OpType type) {
  MemberTensors held = tensors_of_message();
  const View data = held.output(only(tensors, "recv"));
  const bool from_any = type == OpType::RECVANYSOURCE;
  const Rank from = from_any ? kAnyRank : rank_of(source, held.size(), "recv: source");
  return start({type, "stretto:recv", ::c10d::kUnsetTimeout, held, {}, tensors, from.value()},
               [&](Communicator& comm, Duration timeout) {
                 return comm.recv(data, {.from = from, .tag = tag, .timeout = timeout});
               });
}

WorkPtr ProcessGroupStretto::recv(Tensors& tensors, int source, int tag) {
  return receive(tensors, source, tag, OpType::RECV);
}

WorkPtr ProcessGroupStretto::recvAnysource(Tensors& tensors, int tag) {
  return receive(tensors, kAnyRank.value(), tag, OpType::RECVANYSOURCE);
}

WorkPtr ProcessGroupStretto::barrier(const ::c10d::BarrierOptions& options) {
  MemberTensors held = tensors_of_operation();
  return start(
      {OpType::BARRIER, "stretto:barrier", options.timeout, held},
      [&](Communicator& comm, Duration timeout) { return comm.barrier({.timeout = timeout}); });
}

}  // namespace stretto::c10d_backend
