// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/blobs.h"

#include <algorithm>

#include <fmt/format.h>

#include "stretto/communicator/arguments.h"
#include "stretto/communicator/tell_all.h"
#include "stretto/execution/shares.h"

namespace stretto {
namespace {

using communicator::Caller;

// What a rank says before its blob moves.
struct Announcement {
  std::uint64_t bytes = 0;
  std::uint64_t limit_bytes = 0;
};

// Everybody comes to the same conclusion from the same announcements.
std::vector<std::size_t> checked(const Caller& caller,
                                 std::span<const Announcement> announcements) {
  const std::uint64_t limit =
      std::ranges::min(announcements, {}, &Announcement::limit_bytes).limit_bytes;
  std::vector<std::size_t> counts;
  for (const Announcement& announcement : announcements) {
    if (announcement.bytes > limit) {
      refuse(caller, fmt::format("the blob of rank {} has {} bytes; the limit is {} "
                                 "(BlobOptions::limit_bytes)",
                                 counts.size(), announcement.bytes, limit));
    }
    counts.push_back(announcement.bytes);
  }
  return counts;
}

std::vector<Announcement> announce(Communicator& comm, std::size_t bytes,
                                   const BlobOptions& options) {
  return communicator::tell_all<Announcement>(
      comm, {.bytes = bytes, .limit_bytes = options.limit_bytes}, options.timeout);
}

std::vector<Blob> cut(std::span<const std::byte> bytes, std::span<const std::size_t> counts) {
  std::vector<Blob> blobs;
  for (const std::size_t count : counts) {
    blobs.emplace_back(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count));
    bytes = bytes.subspan(count);
  }
  return blobs;
}

}  // namespace

std::vector<Blob> all_gather_blobs(Communicator& comm, std::span<const std::byte> own,
                                   const BlobOptions& options) {
  const Caller caller{.rank = comm.rank(), .operation = "all_gather_blobs"};
  const std::vector<std::size_t> counts = checked(caller, announce(comm, own.size(), options));
  Blob all(execution::total(counts));
  comm.all_gather(own, all, {.counts = counts, .timeout = options.timeout}).wait();
  return cut(all, counts);
}

std::vector<Blob> gather_blobs(Communicator& comm, std::span<const std::byte> own, Rank root,
                               const BlobOptions& options) {
  const Caller caller{.rank = comm.rank(), .operation = "gather_blobs"};
  check_root(caller, root, comm.size());
  const std::vector<std::size_t> counts = checked(caller, announce(comm, own.size(), options));
  const bool is_root = comm.rank() == root;
  Blob all(is_root ? execution::total(counts) : 0);
  comm.gather(own, all, {.root = root, .counts = counts, .timeout = options.timeout}).wait();
  return is_root ? cut(all, counts) : std::vector<Blob>();
}

Blob broadcast_blob(Communicator& comm, std::span<const std::byte> own, Rank root,
                    const BlobOptions& options) {
  const Caller caller{.rank = comm.rank(), .operation = "broadcast_blob"};
  check_root(caller, root, comm.size());
  const bool is_root = comm.rank() == root;
  const std::vector<std::size_t> counts =
      checked(caller, announce(comm, is_root ? own.size() : 0, options));
  Blob blob(counts[static_cast<std::size_t>(root)]);
  if (is_root) std::ranges::copy(own, blob.begin());
  comm.broadcast(blob, {.root = root, .timeout = options.timeout}).wait();
  return blob;
}

Blob scatter_blobs(Communicator& comm, std::span<const Blob> list, Rank root,
                   const BlobOptions& options) {
  const Caller caller{.rank = comm.rank(), .operation = "scatter_blobs"};
  check_root(caller, root, comm.size());
  const bool is_root = comm.rank() == root;
  Blob all;
  std::vector<std::uint64_t> lengths(static_cast<std::size_t>(comm.size()));
  if (is_root) {
    check_count(caller, "list", list.size(), lengths.size());
    for (std::size_t r = 0; r < list.size(); ++r) {
      lengths[r] = list[r].size();
      all.insert(all.end(), list[r].begin(), list[r].end());
    }
  }
  // Everybody's limit; only the root knows lengths.
  std::vector<Announcement> announcements = announce(comm, 0, options);
  comm.broadcast(lengths, {.root = root, .timeout = options.timeout}).wait();
  for (std::size_t r = 0; r < lengths.size(); ++r) announcements[r].bytes = lengths[r];
  const std::vector<std::size_t> counts = checked(caller, announcements);
  Blob own(counts[static_cast<std::size_t>(comm.rank())]);
  comm.scatter(all, own, {.root = root, .counts = counts, .timeout = options.timeout}).wait();
  return own;
}

}  // namespace stretto
