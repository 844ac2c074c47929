// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/state_exchange.h"

#include <algorithm>
#include <numeric>

#include "stretto/base/check.h"
#include "stretto/base/rank_vector.h"
#include "stretto/base/stream_guard.h"

namespace stretto::reducer {
namespace {

// A position in parts that are read or written as one sequence of bytes.
struct Place {
  std::size_t left = 0;
  std::size_t part = 0;
  std::size_t offset = 0;
};

// The parts that one rank owns, and how far they are done.
struct Share {
  std::vector<ByteSpan> parts;
  Place at;
};

// Copies the next bytes of `parts` into `staging`, or back, and moves on.
void copy(BucketMemory& memory, std::span<const ByteSpan> parts, Place& at, ByteSpan staging,
          bool into_staging) {
  at.left -= staging.size();
  while (!staging.empty()) {
    const ByteSpan rest = parts[at.part].subspan(at.offset);
    const std::size_t bytes = std::min(rest.size(), staging.size());
    const ByteSpan of_part = rest.first(bytes), there = staging.first(bytes);
    if (bytes > 0) memory.copy(into_staging ? there : of_part, into_staging ? of_part : there);
    staging = staging.subspan(bytes);
    at.offset += bytes;
    if (bytes < rest.size()) continue;
    ++at.part;
    at.offset = 0;
  }
}

}  // namespace

std::vector<Rank> share_out(std::span<const std::size_t> bytes, int ranks) {
  std::vector<std::size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return bytes[a] > bytes[b]; });
  RankVector<std::size_t> load(ranks);
  std::vector<Rank> owners(bytes.size());
  for (const std::size_t item : order) {
    const auto least = std::min_element(load.begin(), load.end());
    owners[item] = Rank(static_cast<int>(least - load.begin()));
    *least += bytes[item];
  }
  return owners;
}

StateExchange::StateExchange(Communicator& communicator, std::optional<Duration> timeout,
                             std::size_t staging_bytes, BucketMemory& memory)
    : communicator_(communicator),
      timeout_(timeout),
      staging_bytes_(std::max(staging_bytes, static_cast<std::size_t>(communicator.size()))),
      memory_(memory) {}

void StateExchange::run(std::span<const ByteSpan> parts, std::span<const Rank> owners) {
  STRETTO_CHECK(parts.size() == owners.size(), "{} parts of {} owners", parts.size(),
                owners.size());
  RankVector<Share> shares(communicator_.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Share& share = shares[owners[i]];
    share.parts.push_back(parts[i]);
    share.at.left += parts[i].size();
  }
  const std::size_t most = staging_bytes_ / shares.size();  // From a rank in one message.
  std::vector<std::size_t> counts(shares.size());
  // On the default stream, which waits for this thread's work on the memory; others do not.
  const StreamGuard none(nullptr);
  while (true) {
    std::size_t all = 0;
    for (std::size_t r = 0; r < shares.size(); ++r) {
      all += counts[r] = std::min(shares[r].at.left, most);
    }
    if (all == 0) return;
    if (staging_.bytes().size() < all) {
      staging_ = {};
      staging_ = memory_.allocate(communicator_, all);
    }
    std::vector<ByteSpan> places;
    for (std::size_t r = 0, begin = 0; r < shares.size(); begin += counts[r++]) {
      places.push_back(staging_.bytes().subspan(begin, counts[r]));
    }
    const auto self = static_cast<std::size_t>(communicator_.rank().value());
    copy(memory_, shares[self].parts, shares[self].at, places[self], true);
    memory_.publish();
    Work work = communicator_.all_gather(places[self], staging_.bytes().first(all),
                                         {.counts = counts, .timeout = timeout_});
    memory_.end(work).or_throw();
    for (std::size_t r = 0; r < shares.size(); ++r) {
      if (r != self) copy(memory_, shares[r].parts, shares[r].at, places[r], false);
    }
  }
}

}  // namespace stretto::reducer
