// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/state_broadcast.h"

#include <algorithm>
#include <cstring>

namespace stretto::reducer {
namespace {

// A place in a list of parts, seen as one sequence of bytes.
struct Cursor {
  std::size_t part = 0;
  std::size_t offset = 0;
};

// Copies the next `bytes` of `parts` into `staging`, or back. Returns the place behind them.
Cursor copy(std::span<const ByteSpan> parts, Cursor at, std::span<std::uint8_t> staging,
            bool into_staging) {
  while (!staging.empty()) {
    const ByteSpan rest = parts[at.part].subspan(at.offset);
    const std::size_t bytes = std::min(rest.size(), staging.size());
    if (into_staging && bytes > 0) std::memcpy(staging.data(), rest.data(), bytes);
    if (!into_staging && bytes > 0) std::memcpy(rest.data(), staging.data(), bytes);
    staging = staging.subspan(bytes);
    at.offset += bytes;
    if (bytes == rest.size()) at = {at.part + 1, 0};
  }
  return at;
}

}  // namespace

void StateBroadcast::run(std::span<const ByteSpan> parts, Rank root) {
  std::size_t left = 0;
  for (const ByteSpan part : parts) left += part.size();
  const std::size_t needed = std::min(left, staging_bytes_);
  if (staging_.size() < needed) staging_ = communicator_.allocate<std::uint8_t>(needed);
  const bool is_root = communicator_.rank() == root;
  Cursor at;
  while (left > 0) {
    const std::size_t bytes = std::min(left, staging_.size());
    const std::span<std::uint8_t> message = staging_.span().first(bytes);
    if (is_root) copy(parts, at, message, true);
    communicator_.broadcast(message, {.root = root, .timeout = timeout_}).wait();
    at = copy(parts, at, message, false);
    left -= bytes;
  }
}

}  // namespace stretto::reducer
