// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "stretto/communicator/communicator.h"

namespace stretto {

// Bytes of any length: what a program has serialised. Receivers need not know how many come.
using Blob = std::vector<std::byte>;

struct BlobOptions {
  // Of each blob. A rank that is handed a longer one makes the call fail on all ranks; the smallest
  // limit of any rank holds.
  std::size_t limit_bytes = std::size_t{64} << 20;
  std::optional<Duration> timeout = std::nullopt;
};

// Exchanges of blobs: collective, blocking, of two operations (a scatter of three), of which the
// last moves the blobs and those before tell lengths and limits. Throw InvalidArgument, on all
// ranks and before any blob has moved, if one of them is too long, naming its rank; otherwise what
// the operations throw.

// Everybody's blob, by rank.
std::vector<Blob> all_gather_blobs(Communicator& comm, std::span<const std::byte> own,
                                   const BlobOptions& options = {});
// The same on the root; nothing elsewhere.
std::vector<Blob> gather_blobs(Communicator& comm, std::span<const std::byte> own, Rank root,
                               const BlobOptions& options = {});
// The root's blob. Elsewhere `own` is not used.
Blob broadcast_blob(Communicator& comm, std::span<const std::byte> own, Rank root,
                    const BlobOptions& options = {});
// Blob r of the root's list, which has one for each rank, on rank r. Elsewhere `list` is not used.
Blob scatter_blobs(Communicator& comm, std::span<const Blob> list, Rank root,
                   const BlobOptions& options = {});

}  // namespace stretto
