// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Operations on lists: several buffers, or several messages, with one Work.

#include <array>

#include <fmt/format.h>

#include "stretto/communicator/arguments.h"
#include "stretto/communicator/scheduled_communicator.h"

namespace stretto::communicator {
namespace {

// Two copies of a buffer of this size cost about as much as an operation of its own.
constexpr std::size_t kPackedBufferBytesMax = 256 * 1024;
constexpr std::size_t kPackBytesMax = 8 * 1024 * 1024;

// A hash of what all ranks' lists must have in common.
std::uint64_t layout_of(std::span<const View> list) {
  std::vector<std::size_t> words;
  for (const View& view : list) {
    words.push_back(view.count);
    words.push_back(static_cast<std::size_t>(view.dtype));
  }
  return execution::layout_hash(words);
}

// Cuts a list into operations, the same way on all ranks: large buffers alone, small ones of one
// dtype together up to a limit.
std::vector<std::vector<View>> packs_of(std::span<const View> list) {
  std::vector<std::vector<View>> packs;
  struct Open {
    std::size_t pack = 0;
    std::size_t bytes = kPackBytesMax + 1;  // There is none: too full even for an empty buffer.
  };
  std::array<Open, kDTypeCount> open;
  for (const View& view : list) {
    if (view.bytes() > kPackedBufferBytesMax) {
      packs.push_back({view});
      continue;
    }
    Open& current = open[static_cast<std::size_t>(view.dtype)];
    if (current.bytes + view.bytes() > kPackBytesMax) {
      current = {.pack = packs.size(), .bytes = 0};
      packs.emplace_back();
    }
    packs[current.pack].push_back(view);
    current.bytes += view.bytes();
  }
  return packs;
}

std::size_t elements_of(const std::vector<View>& pack) {
  std::size_t count = 0;
  for (const View& view : pack) count += view.count;
  return count;
}

// `head` on one pack.
group::Group::Submission submission_of(const OperationDescriptor& head,
                                       const std::vector<View>& pack, double factor) {
  group::Group::Submission submission{.operation = head};
  submission.operation.dtype = pack.front().dtype;
  submission.operation.count = elements_of(pack);
  if (pack.size() == 1 && factor == 1) {
    submission.input = pack.front().span();
    submission.output = pack.front().span();
    return submission;
  }
  submission.packing = group::Packing{.source = pack.front(),
                                      .more = {pack.begin() + 1, pack.end()},
                                      .factor = factor,
                                      .targets = pack};
  return submission;
}

}  // namespace

Work ScheduledCommunicator::submit_list(const OperationDescriptor& head, std::span<const View> list,
                                        double factor, const std::string& algorithm,
                                        const std::optional<Duration>& timeout) {
  OperationDescriptor operation = head;
  operation.layout = layout_of(list);
  std::vector<group::Group::Submission> submissions;
  for (const std::vector<View>& pack : packs_of(list)) {
    submissions.push_back(submission_of(operation, pack, factor));
  }
  return submit_all(submissions, algorithm, timeout);
}

Work ScheduledCommunicator::submit_all(std::span<group::Group::Submission> submissions,
                                       const std::string& algorithm,
                                       const std::optional<Duration>& timeout) {
  const Deadline ends = deadline(timeout);
  std::vector<std::shared_ptr<group::Operation>> parts;
  auto held = engine_->lock();
  for (group::Group::Submission& submission : submissions) {
    submission.deadline = ends;
    Result<std::shared_ptr<group::Operation>> part = submit_locked(submission, algorithm, held);
    // Those before it are on the caller's buffers already, and the others wait for all of them.
    if (!part.ok() && !parts.empty()) group_->fail(part.status(), true);
    if (!part.ok()) engine_->run_continuations(held);
    parts.push_back(std::move(part).or_throw());
  }
  engine_->run_continuations(held);
  return join(std::move(parts));
}

template <class AnyOptions>
Work ScheduledCommunicator::submit_pairs(std::string_view operation,
                                         std::span<const ConstView> inputs,
                                         std::span<const View> outputs, const AnyOptions& options) {
  Caller caller{.rank = rank(), .operation = operation};
  check_count(caller, "list of outputs", outputs.size(), inputs.size());
  std::vector<group::Group::Submission> submissions;  // All arguments are looked at first.
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    caller.entry = i;
    submissions.push_back(prepare(caller, inputs[i], outputs[i], options));
  }
  return submit_all(submissions, options.algorithm, options.timeout);
}

Work ScheduledCommunicator::all_reduce_coalesced(std::span<const View> list,
                                                 const AllReduceOptions& options) {
  Caller caller{.rank = rank(), .operation = "all_reduce_coalesced"};
  for (std::size_t i = 0; i < list.size(); ++i) {
    caller.entry = i;
    check_reduction(caller, options.op, list[i].dtype, options.factor);
  }
  return submit_list({.collective = Collective::all_reduce, .op = options.op}, list, options.factor,
                     options.algorithm, options.timeout);
}

Work ScheduledCommunicator::broadcast_coalesced(std::span<const View> list,
                                                const BroadcastOptions& options) {
  check_root({.rank = rank(), .operation = "broadcast_coalesced"}, options.root, size());
  return submit_list({.collective = Collective::broadcast, .root = options.root.value()}, list, 1,
                     options.algorithm, options.timeout);
}

Work ScheduledCommunicator::reduce_scatter_coalesced(std::span<const ConstView> inputs,
                                                     std::span<const View> outputs,
                                                     const ReduceScatterOptions& options) {
  return submit_pairs("reduce_scatter_coalesced", inputs, outputs, options);
}

Work ScheduledCommunicator::all_gather_coalesced(std::span<const ConstView> inputs,
                                                 std::span<const View> outputs,
                                                 const AllGatherOptions& options) {
  return submit_pairs("all_gather_coalesced", inputs, outputs, options);
}

group::Mailbox::Message ScheduledCommunicator::message_of(
    const Caller& caller, const Transfer& transfer, const std::optional<Duration>& timeout) const {
  const bool any = !transfer.sends && transfer.peer == kAnyRank;
  const bool other = transfer.peer >= 0 && transfer.peer < size() && transfer.peer != rank();
  if (!other && !(any && size() > 1)) {
    check(caller, size() > 1, "there is no other rank");
    refuse(caller, fmt::format("rank {} is not one of the other {} ranks", transfer.peer.value(),
                               size() - 1));
  }
  if (transfer.tag < 0) refuse(caller, fmt::format("tag {} is negative", transfer.tag));
  const DType dtype = transfer.sends ? transfer.outgoing.dtype : transfer.incoming.dtype;
  const std::size_t count = transfer.sends ? transfer.outgoing.count : transfer.incoming.count;
  return {.sends = transfer.sends,
          .peer = transfer.peer,
          .tag = transfer.tag,
          .operation = {.collective = Collective::point_to_point, .dtype = dtype, .count = count},
          .outgoing = transfer.outgoing.span(),
          .incoming = transfer.incoming.span(),
          .deadline = deadline(timeout)};
}

Work ScheduledCommunicator::submit_message(std::string_view operation, const Transfer& transfer,
                                           const std::optional<Duration>& timeout) {
  const group::Mailbox::Message message =
      message_of({.rank = rank(), .operation = operation}, transfer, timeout);
  auto held = engine_->lock();
  std::shared_ptr<group::PendingOperation> pending = group_->submit(message).or_throw();
  engine_->run_continuations(held);
  return Work(std::move(pending));
}

Work ScheduledCommunicator::send_view(const ConstView& data, const SendOptions& options) {
  return submit_message(
      "send",
      {.sends = true, .outgoing = data, .incoming = {}, .peer = options.to, .tag = options.tag},
      options.timeout);
}

Work ScheduledCommunicator::recv_view(const View& data, const RecvOptions& options) {
  return submit_message(
      "recv",
      {.sends = false, .outgoing = {}, .incoming = data, .peer = options.from, .tag = options.tag},
      options.timeout);
}

Work ScheduledCommunicator::batch_send_recv(std::span<const Transfer> transfers,
                                            const BatchOptions& options) {
  // All arguments are looked at before anything is sent.
  std::vector<group::Mailbox::Message> messages;
  Caller caller{.rank = rank(), .operation = "batch_send_recv"};
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    caller.entry = i;
    messages.push_back(message_of(caller, transfers[i], options.timeout));
  }
  std::vector<std::shared_ptr<group::Operation>> parts;
  auto held = engine_->lock();
  // Receives first: what is on its way then finds its place at once.
  for (const bool sends : {false, true}) {
    for (const group::Mailbox::Message& message : messages) {
      if (message.sends == sends) parts.push_back(group_->submit(message).or_throw());
    }
  }
  engine_->run_continuations(held);
  return join(std::move(parts));
}

}  // namespace stretto::communicator
