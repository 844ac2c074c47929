// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "stretto/communicator/communicator.h"

namespace stretto {

// Bytes of any length, such as a serialised object. Receivers need not know how many come.
using ByteVector = std::vector<std::byte>;

struct ByteExchangeOptions {
  // The most bytes that one rank may pass to another. If a rank passes more, the call fails on all
  // ranks. If ranks have different limits, the smallest holds.
  std::size_t limit_bytes = std::size_t{64} << 20;
  std::optional<Duration> timeout = std::nullopt;
};

// These are collective and block. Each runs two operations (scatter_bytes() three): the last one
// moves the bytes, the earlier ones exchange lengths and limits. If a rank passes more than the
// limit, they throw InvalidArgument on all ranks, before any byte has moved, and name that rank. If
// a rank has no memory for the result, it throws OutOfMemory and aborts the communicator. Otherwise
// they throw what the operations throw.

// The bytes of all ranks, by rank.
std::vector<ByteVector> all_gather_bytes(Communicator& comm, std::span<const std::byte> own,
                                         const ByteExchangeOptions& options = {});
// The same on the root; an empty list elsewhere.
std::vector<ByteVector> gather_bytes(Communicator& comm, std::span<const std::byte> own, Rank root,
                                     const ByteExchangeOptions& options = {});
// The root's bytes. Elsewhere `own` is not used.
ByteVector broadcast_bytes(Communicator& comm, std::span<const std::byte> own, Rank root,
                           const ByteExchangeOptions& options = {});
// Rank r gets `list[r]` of the root, which has an entry for each rank. Elsewhere `list` is not
// used.
ByteVector scatter_bytes(Communicator& comm, std::span<const ByteVector> list, Rank root,
                         const ByteExchangeOptions& options = {});

}  // namespace stretto
