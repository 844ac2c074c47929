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
using ByteVector = std::vector<std::byte>;

struct ByteExchangeOptions {
  // Of what one rank passes to another. A rank that passes more makes the call fail on all ranks;
  // the smallest limit of any rank holds.
  std::size_t limit_bytes = std::size_t{64} << 20;
  std::optional<Duration> timeout = std::nullopt;
};

// These are collective and block. Each consists of two operations (a scatter of three): the last
// moves the bytes, those before it exchange lengths and limits. They throw InvalidArgument on all
// ranks, before any byte has moved, if a rank passes more than the limit, and name that rank;
// otherwise they throw what the operations throw.

// The bytes of all ranks, by rank.
std::vector<ByteVector> all_gather_bytes(Communicator& comm, std::span<const std::byte> own,
                                         const ByteExchangeOptions& options = {});
// The same on the root; nothing elsewhere.
std::vector<ByteVector> gather_bytes(Communicator& comm, std::span<const std::byte> own, Rank root,
                                     const ByteExchangeOptions& options = {});
// The root's bytes. Elsewhere `own` is not used.
ByteVector broadcast_bytes(Communicator& comm, std::span<const std::byte> own, Rank root,
                           const ByteExchangeOptions& options = {});
// Entry r of the root's list, which has one for each rank, on rank r. Elsewhere `list` is not used.
ByteVector scatter_bytes(Communicator& comm, std::span<const ByteVector> list, Rank root,
                         const ByteExchangeOptions& options = {});

}  // namespace stretto
