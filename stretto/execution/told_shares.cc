// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/execution/told_shares.h"

#include <cstring>
#include <limits>

#include <fmt/format.h>

namespace stretto::execution {
namespace {

// A peer may have written anything. Up to this count, sums over ranks can still be counted in
// bytes.
constexpr std::size_t kCountMax = std::numeric_limits<std::size_t>::max() / 65536;

}  // namespace

Status counts_differ(Rank sender, std::size_t sent, Rank receiver, std::size_t expected) {
  return {StatusCode::mismatch,
          fmt::format("rank {} sends {} elements to rank {}, which expects {}", sender.value(),
                      sent, receiver.value(), expected),
          sender};
}

void tell_shares(const Plan& plan, std::byte* staging) {
  const std::int32_t ranks = plan.schedule().rank_count;
  const std::int32_t own = plan.schedule().rank.value();
  std::vector<std::size_t> told;
  for (std::int32_t r = 0; r < ranks; ++r) told.push_back(plan.chunk_elements(own * ranks + r));
  for (std::int32_t r = 0; r < ranks; ++r) told.push_back(plan.chunk_elements(r * ranks + own));
  std::memcpy(staging, told.data(), told.size() * sizeof(std::size_t));
}

Result<Shares> read_shares(const Windows& windows, const Membership& membership) {
  const std::size_t ranks = windows.of.size();
  const std::size_t row_bytes = ranks * sizeof(std::size_t);
  std::vector<std::size_t> sent(ranks * ranks);
  std::vector<std::size_t> received(ranks * ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    Window& window = *windows.of[static_cast<int>(r)];
    const std::byte* const told = window.half(windows.staging_turn);
    std::memcpy(&sent[r * ranks], told, row_bytes);
    std::memcpy(&received[r * ranks], told + row_bytes, row_bytes);
  }
  for (std::size_t from = 0; from < ranks; ++from) {
    for (std::size_t to = 0; to < ranks; ++to) {
      const std::size_t count = sent[from * ranks + to];
      const std::size_t expected = received[to * ranks + from];
      const Rank sender = membership.members[from];
      if (count != expected) {
        return counts_differ(sender, count, membership.members[to], expected);
      }
      if (count > kCountMax) {
        return status_of(StatusCode::protocol, "rank {} sends {} elements, which cannot be",
                         sender.value(), count);
      }
    }
  }
  return Shares{.counts = std::move(sent), .received = {}};
}

}  // namespace stretto::execution
