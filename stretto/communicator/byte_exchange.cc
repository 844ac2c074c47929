// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/byte_exchange.h"

#include <algorithm>
#include <exception>
#include <string>

#include <fmt/format.h>

#include "stretto/base/error.h"
#include "stretto/communicator/all_gather_value.h"
#include "stretto/communicator/arguments.h"
#include "stretto/execution/shares.h"

namespace stretto {
namespace {

using communicator::Caller;

// What a rank tells the others before its bytes move.
struct Announcement {
  std::uint64_t bytes = 0;
  std::uint64_t limit_bytes = 0;
};

// All ranks get the same result from the same announcements.
RankVector<std::size_t> checked(const Caller& caller, std::span<const Announcement> announcements) {
  const std::uint64_t limit =
      std::ranges::min(announcements, {}, &Announcement::limit_bytes).limit_bytes;
  RankVector<std::size_t> counts;
  for (const Announcement& announcement : announcements) {
    if (announcement.bytes > limit) {
      refuse(caller, fmt::format("rank {} passes {} bytes; the limit is {} "
                                 "(ByteExchangeOptions::limit_bytes)",
                                 counts.size(), announcement.bytes, limit));
    }
    counts.push_back(announcement.bytes);
  }
  return counts;
}

RankVector<Announcement> announce(Communicator& comm, std::size_t bytes,
                                  const ByteExchangeOptions& options) {
  return communicator::all_gather_value<Announcement>(
      comm, {.bytes = bytes, .limit_bytes = options.limit_bytes}, options.timeout);
}

// Memory for bytes that others are about to send. Aborts if there is none, as the others would wait
// for this rank.
ByteVector room_for(std::size_t bytes, Communicator& comm, const Caller& caller) {
  try {
    return ByteVector(bytes);
  } catch (const std::exception&) {
    const Status status =
        status_of(StatusCode::out_of_memory, "rank {}: {}: there is no memory for {} bytes",
                  caller.rank.value(), caller.operation, bytes);
    comm.abort(std::string(status.message()));
    throw OutOfMemory(status);
  }
}

std::vector<ByteVector> cut(std::span<const std::byte> bytes, std::span<const std::size_t> counts) {
  std::vector<ByteVector> parts;
  for (const std::size_t count : counts) {
    parts.emplace_back(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count));
    bytes = bytes.subspan(count);
  }
  return parts;
}

}  // namespace

std::vector<ByteVector> all_gather_bytes(Communicator& comm, std::span<const std::byte> own,
                                         const ByteExchangeOptions& options) {
  const Caller caller{.rank = comm.rank(), .operation = "all_gather_bytes"};
  const RankVector<std::size_t> counts = checked(caller, announce(comm, own.size(), options));
  ByteVector all = room_for(execution::total(counts), comm, caller);
  comm.all_gather(own, all, {.counts = counts, .timeout = options.timeout}).wait();
  return cut(all, counts);
}

std::vector<ByteVector> gather_bytes(Communicator& comm, std::span<const std::byte> own, Rank root,
                                     const ByteExchangeOptions& options) {
  const Caller caller{.rank = comm.rank(), .operation = "gather_bytes"};
  check_root(caller, root, comm.size());
  const RankVector<std::size_t> counts = checked(caller, announce(comm, own.size(), options));
  const bool is_root = comm.rank() == root;
  ByteVector all = room_for(is_root ? execution::total(counts) : 0, comm, caller);
  comm.gather(own, all, {.root = root, .counts = counts, .timeout = options.timeout}).wait();
  return is_root ? cut(all, counts) : std::vector<ByteVector>();
}

ByteVector broadcast_bytes(Communicator& comm, std::span<const std::byte> own, Rank root,
                           const ByteExchangeOptions& options) {
  const Caller caller{.rank = comm.rank(), .operation = "broadcast_bytes"};
  check_root(caller, root, comm.size());
  const bool is_root = comm.rank() == root;
  const RankVector<std::size_t> counts =
      checked(caller, announce(comm, is_root ? own.size() : 0, options));
  ByteVector result = room_for(counts[root], comm, caller);
  if (is_root) std::ranges::copy(own, result.begin());
  comm.broadcast(result, {.root = root, .timeout = options.timeout}).wait();
  return result;
}

ByteVector scatter_bytes(Communicator& comm, std::span<const ByteVector> list, Rank root,
                         const ByteExchangeOptions& options) {
  const Caller caller{.rank = comm.rank(), .operation = "scatter_bytes"};
  check_root(caller, root, comm.size());
  const bool is_root = comm.rank() == root;
  ByteVector all;
  RankVector<std::uint64_t> lengths(comm.size());
  if (is_root) {
    check_count(caller, "list", list.size(), lengths.size());
    for (std::size_t r = 0; r < list.size(); ++r) {
      lengths[r] = list[r].size();
      all.insert(all.end(), list[r].begin(), list[r].end());
    }
  }
  // Exchanges the limits; only the root knows the lengths.
  RankVector<Announcement> announcements = announce(comm, 0, options);
  comm.broadcast(lengths, {.root = root, .timeout = options.timeout}).wait();
  for (std::size_t r = 0; r < lengths.size(); ++r) announcements[r].bytes = lengths[r];
  const RankVector<std::size_t> counts = checked(caller, announcements);
  ByteVector own = room_for(counts[comm.rank()], comm, caller);
  comm.scatter(all, own, {.root = root, .counts = counts, .timeout = options.timeout}).wait();
  return own;
}

}  // namespace stretto
