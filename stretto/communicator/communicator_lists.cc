// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Operations on lists: several buffers, or several messages, with one Work.

#include <array>

#include <fmt/format.h>

#include "stretto/communicator/arguments.h"
#include "stretto/communicator/communicator.h"
#include "stretto/communicator/observation.h"

namespace stretto {

using namespace communicator;

namespace {

// Copying a buffer of this size twice costs about as much as an operation for it alone.
constexpr std::size_t kPackedBufferBytesMax = 256 * 1024;
constexpr std::size_t kPackBytesMax = 8 * 1024 * 1024;

// A hash of the counts and dtypes, which must be the same on all ranks.
std::uint64_t layout_of(std::span<const View> list) {
  std::vector<std::size_t> words;
  for (const View& view : list) {
    words.push_back(view.count);
    words.push_back(static_cast<std::size_t>(view.dtype));
  }
  return execution::layout_hash(words);
}

// Divides a list into operations, in the same way on all ranks: each large buffer alone, small ones
// of one dtype together up to a limit.
std::vector<std::vector<View>> packs_of(std::span<const View> list) {
  std::vector<std::vector<View>> packs;
  struct Open {
    std::size_t pack = 0;
    std::size_t bytes = kPackBytesMax + 1;  // No pack yet: too full for any buffer.
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

// The operation `head` on one pack.
CollectiveCall call_of(const OperationDescriptor& head, const std::vector<View>& pack,
                       double factor) {
  CollectiveCall call(head);
  call.operation.dtype = pack.front().dtype;
  call.operation.count = elements_of(pack);
  if (pack.size() == 1 && factor == 1) {
    call.input = call.output = pack.front().span();
    return call;
  }
  call.packing = group::Packing{.parts = {.source = pack.front(),
                                          .more = {pack.begin() + 1, pack.end()},
                                          .factor = factor,
                                          .targets = pack}};
  return call;
}

std::vector<CollectiveCall> calls_of(OperationDescriptor head, std::span<const View> list,
                                     double factor) {
  head.layout = layout_of(list);
  std::vector<CollectiveCall> calls;
  for (const std::vector<View>& pack : packs_of(list)) calls.push_back(call_of(head, pack, factor));
  return calls;
}

void check_message(const Caller& caller, const Transfer& transfer, int size) {
  const bool any = !transfer.sends && transfer.peer == kAnyRank;
  const bool other = transfer.peer >= 0 && transfer.peer < size && transfer.peer != caller.rank;
  if (!other && !(any && size > 1)) {
    check(caller, size > 1, "there is no other rank");
    refuse(caller, fmt::format("rank {} is not one of the other {} ranks", transfer.peer.value(),
                               size - 1));
  }
  const bool is_null =
      lacks_memory(transfer.outgoing.span()) || lacks_memory(transfer.incoming.span());
  if (is_null) refuse_null(caller);
  if (transfer.tag < 0) refuse(caller, fmt::format("tag {} is negative", transfer.tag));
}

}  // namespace

Work Communicator::all_reduce_coalesced(std::span<const View> list,
                                        const AllReduceOptions& options) {
  Caller caller{.rank = rank(), .operation = "all_reduce_coalesced"};
  for (std::size_t i = 0; i < list.size(); ++i) {
    caller.entry = i;
    check_reduction(caller, options.op, list[i].dtype, options.factor);
  }
  return submit(
      calls_of({.collective = Collective::all_reduce, .op = options.op}, list, options.factor),
      options.algorithm, options.timeout);
}

Work Communicator::broadcast_coalesced(std::span<const View> list,
                                       const BroadcastOptions& options) {
  check_root({.rank = rank(), .operation = "broadcast_coalesced"}, options.root, size());
  return submit(
      calls_of({.collective = Collective::broadcast, .root = options.root.value()}, list, 1),
      options.algorithm, options.timeout);
}

Work Communicator::exchange(const char* name, const Transfer& one,
                            const std::optional<Duration>& timeout) {
  check_message({.rank = rank(), .operation = name}, one, size());
  check_timeout(timeout);
  return observation_ == nullptr ? backend_->exchange({&one, 1}, timeout)
                                 : observation_->exchange({&one, 1}, timeout);
}

Work Communicator::batch_send_recv(std::span<const Transfer> transfers,
                                   const BatchOptions& options) {
  Caller caller{.rank = rank(), .operation = "batch_send_recv"};
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    caller.entry = i;
    check_message(caller, transfers[i], size());
  }
  check_timeout(options.timeout);
  if (transfers.empty()) return Work();
  return observation_ == nullptr ? backend_->exchange(transfers, options.timeout)
                                 : observation_->exchange(transfers, options.timeout);
}

}  // namespace stretto
