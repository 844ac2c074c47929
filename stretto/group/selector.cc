// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/selector.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include <fmt/format.h>

#include "stretto/execution/window.h"

namespace stretto::group {
namespace {

using schedule::Access;
using schedule::Algorithm;

// Where ranks share cores, a sync takes a microsecond or more, so one sync instead of two saves
// time up to this size, in bytes of all ranks together.
constexpr double kOneSyncOversubscribedBytes = 64 * 1024;
// From this size on, in bytes per rank, a single copy takes less time than staging; for some
// reductions see prefers_single_copy().
constexpr std::size_t kSingleCopyBytes = 256 * 1024;
// In a reduction by more ranks, the pieces that fit into the scratch are too small for a single
// copy to pay.
constexpr int kSingleCopyReducers = 16;
constexpr double kRounding = 1e-6;
constexpr std::size_t kSegmentBytesMax = 256 * 1024;
constexpr std::size_t kSegmentBytesMin = 32 * 1024;
constexpr std::size_t kScratchBytes = 8 * 1024 * 1024;
constexpr std::size_t kAnyBytes = std::numeric_limits<std::size_t>::max();

// Enough lanes to keep a link, the reduction and the peer's reduction busy at the same time, and
// the most lanes that a network with a long latency may add.
constexpr std::size_t kLanesOfMessages = 4;
constexpr std::size_t kLanesMax = execution::Window::kLanes;
// A lane of a team also waits for the ranks of its host, which may have to wait for a core. Where
// other programs used the cores, twice as many lanes took 0.6 to 0.8 of the time.
constexpr std::size_t kLanesOfTeams = 8;
// If a network takes at least this many times as long for a byte as a reduction in a cache,
// processors have the time to fetch staged bytes from memory again. On a faster network, fewer
// lanes with shorter segments took 0.75 to 0.85 of the time (4 and 16 MiB at 10 Gbit/s), as staged
// bytes stay in the caches.
constexpr double kSlowWire = 128;
// If the latency is more than this share of an operation's time, waiting for one more latency after
// a lost packet costs more than the lost packet itself.
constexpr double kLongWay = 0.1;

// The longest segment whose messages, including those with partial sums, are sent without waiting
// for their receives. A longer message waits until it is cleared, and its clear waits behind all
// bytes under way in the other direction. Where ranks are alone on their hosts, the link would be
// idle for a quarter of the time.
std::size_t eager_segment_bytes(const OperationDescriptor& operation) {
  const DType sent =
      reduces(operation.collective) ? accumulation_dtype(operation.dtype) : operation.dtype;
  return transport::kEagerBytes / size_bytes(sent) * size_bytes(operation.dtype);
}

// Empty if all ranks are on one host, as HostSummary expects.
std::span<const std::int32_t> several(const HostList& hosts) {
  const bool one_host = std::ranges::all_of(hosts, [](std::int32_t host) { return host == 0; });
  return one_host ? std::span<const std::int32_t>() : hosts;
}

// If the network takes most of the time, many algorithms cost the same. The one that waits and
// works least besides sending leaves most of the core to the program's computation. If two differ
// only by rounding errors, the first in the catalogue wins.
bool is_lighter(const Selector::Candidate& a, const Selector::Candidate& b) {
  const double more = std::max(a.seconds_beside_wire, b.seconds_beside_wire);
  const double apart = a.seconds_beside_wire - b.seconds_beside_wire;
  return std::abs(apart) > more * kRounding ? apart < 0 : a.algorithm < b.algorithm;
}

}  // namespace

Selector::Selector(Setting setting)
    : setting_(std::move(setting)), summary_(setting_.rank_count, several(setting_.hosts)) {}

bool Selector::is_usable(const Algorithm& algorithm, bool mapped, bool equal_chunks) const {
  const bool has_memory =
      algorithm.access == Access::messages ||
      (algorithm.access == Access::mapped ? mapped : setting_.has_teams && fits_lanes(algorithm));
  return has_memory && (equal_chunks || !algorithm.equal_chunks);
}

bool Selector::fits_lanes(const Algorithm& algorithm) const {
  const auto slots = static_cast<std::size_t>(schedule::shared_slots(algorithm, summary_));
  return slots <= execution::Window::kLaneSlotsMax;
}

// Names are unique per collective, whatever the access. Null: there is no such algorithm that can
// be used.
const Algorithm* Selector::find(Collective collective, std::string_view called, bool mapped,
                                bool equal_chunks) const {
  for (const Algorithm& algorithm : schedule::algorithms()) {
    const bool is_meant = algorithm.collective == collective && algorithm.name == called;
    if (is_meant && is_usable(algorithm, mapped, equal_chunks)) return &algorithm;
  }
  return nullptr;
}

std::string Selector::names(Collective collective, bool mapped, bool equal_chunks) const {
  std::string list;
  for (const Algorithm& algorithm : schedule::algorithms()) {
    if (algorithm.collective != collective || !is_usable(algorithm, mapped, equal_chunks)) continue;
    list += (list.empty() ? "" : ", ") + std::string(algorithm.name);
  }
  return list;
}

const schedule::LinkCost& Selector::link() const {
  return summary_.has_hosts() ? setting_.links.network : setting_.links.local;
}

// The bytes that a link holds for a round trip.
double Selector::bytes_under_way() const {
  return 2 * link().latency_seconds / link().seconds_per_byte;
}

// Segments are short enough to bound the scratch of a lane when every rank sends to every other.
std::size_t Selector::segment_bytes(const Algorithm& algorithm,
                                    const OperationDescriptor& operation) const {
  std::size_t bytes = std::clamp(kScratchBytes / static_cast<std::size_t>(setting_.rank_count),
                                 kSegmentBytesMin, kSegmentBytesMax);
  if (algorithm.access == Access::both) {
    const auto slots =
        static_cast<std::size_t>(std::max(1, schedule::shared_slots(algorithm, summary_)));
    bytes = std::min(
        {bytes, execution::Window::lane_slot_bytes(slots), eager_segment_bytes(operation)});
    if (stages_in_caches()) bytes = std::min(bytes, kSegmentBytesMin);
  } else if (summary_.has_hosts()) {
    // All lanes together still fill a network with a long latency.
    const double share = std::min<double>(bytes_under_way() / kLanesMax, kSegmentBytesMax);
    bytes =
        std::min(bytes, std::max(eager_segment_bytes(operation), static_cast<std::size_t>(share)));
  }
  return setting_.segment_bytes > 0 ? std::min(bytes, setting_.segment_bytes) : bytes;
}

// Not on a network with a long latency, which has to be filled.
bool Selector::stages_in_caches() const {
  constexpr auto kUnderWay = static_cast<double>(kLanesOfMessages * kSegmentBytesMin);
  return link().seconds_per_byte < kSlowWire * link().reduce_seconds_per_byte &&
         bytes_under_way() < kUnderWay;
}

std::size_t Selector::team_lanes() const {
  return stages_in_caches() ? kLanesOfMessages : kLanesMax;
}

std::size_t Selector::lanes_max(const Algorithm& algorithm) const {
  return algorithm.access == Access::both ? team_lanes() : kLanesMax;
}

std::size_t Selector::lanes(const Algorithm& algorithm, std::size_t segment_bytes) const {
  const std::size_t all = lanes_max(algorithm);
  const std::size_t least =
      std::min(all, algorithm.access == Access::both ? kLanesOfTeams : kLanesOfMessages);
  const double more =
      std::ceil(bytes_under_way() / static_cast<double>(std::max<std::size_t>(1, segment_bytes)));
  const auto most = static_cast<double>(all - least);
  return least + static_cast<std::size_t>(std::clamp(more - 1, 0.0, most));
}

schedule::CostQuery Selector::query(const Algorithm& algorithm,
                                    const OperationDescriptor& operation) const {
  const std::size_t element_bytes = size_bytes(operation.dtype);
  const std::size_t partial_bytes = size_bytes(accumulation_dtype(operation.dtype));
  return {.bytes = std::bit_ceil(operation.count * element_bytes),
          .segment_bytes = segment_bytes(algorithm, operation),
          .lanes = lanes_max(algorithm),
          .partial_scale = static_cast<int>(partial_bytes / element_bytes),
          .link = link(),
          .local_link = setting_.links.local};
}

double Selector::estimate(const Algorithm& algorithm, const OperationDescriptor& operation) const {
  return schedule::estimate(algorithm, summary_, query(algorithm, operation));
}

// The time it would take if bytes on a link took no time. Without segments: if the network takes
// the time, segments wait for it and not for each other.
double Selector::estimate_beside_wire(const Algorithm& algorithm,
                                      const OperationDescriptor& operation) const {
  schedule::CostQuery instant = query(algorithm, operation);
  instant.segment_bytes = instant.lanes = 0;
  instant.link.seconds_per_byte = instant.link.burst_bytes = 0;
  instant.link.burst_seconds_per_byte = 0;
  return schedule::estimate(algorithm, summary_, instant);
}

// A rank that sends everything at once needs a congestion window of that size, since
// acknowledgements wait behind the bytes of the other direction. After a lost packet the window is
// smaller, and the last bytes wait for one more latency: 64 KiB on 2 hosts with 2 ranks each, at
// 100 Mbit/s, 1 ms and 0.1 % loss, took 1.15 times as long as two exchanges of half the bytes.
bool Selector::is_one_long_exchange(const Candidate& candidate) const {
  const double way = link().latency_seconds;
  return way > kLongWay * candidate.seconds && candidate.seconds_beside_wire < 2 * way;
}

std::vector<Selector::Candidate> Selector::candidates(const OperationDescriptor& operation,
                                                      bool equal_chunks) const {
  std::vector<Candidate> candidates;
  for (const Algorithm& algorithm : schedule::algorithms()) {
    if (algorithm.collective != operation.collective) continue;
    // Results of a fixed order would depend on the algorithm in their last bits.
    if (algorithm.order == schedule::Order::fixed) continue;
    if (!is_usable(algorithm, false, equal_chunks)) continue;
    candidates.push_back({&algorithm, estimate(algorithm, operation)});
  }
  std::ranges::stable_sort(candidates, {}, &Candidate::seconds);
  const auto near_end = std::ranges::find_if(candidates, [&](const Candidate& candidate) {
    return candidate.seconds > candidates.front().seconds * (1 + kSameCost);
  });
  if (near_end - candidates.begin() < 2) return candidates;
  for (auto near = candidates.begin(); near != near_end; ++near) {
    near->seconds_beside_wire = estimate_beside_wire(*near->algorithm, operation);
  }
  const auto first =
      std::min_element(candidates.begin(), near_end, [&](const Candidate& a, const Candidate& b) {
        const bool a_is_one = is_one_long_exchange(a);
        return a_is_one == is_one_long_exchange(b) ? is_lighter(a, b) : !a_is_one;
      });
  std::rotate(candidates.begin(), first, first + 1);
  return candidates;
}

std::vector<Selector::Candidate> Selector::others(const OperationDescriptor& operation) const {
  std::vector<Candidate> others;
  for (const Algorithm& algorithm : schedule::algorithms()) {
    const bool is_meant =
        algorithm.collective == operation.collective && algorithm.order == schedule::Order::fixed;
    if (is_meant) others.push_back({&algorithm, estimate(algorithm, operation)});
  }
  return others;
}

// The largest operation, in bytes, for which one sync pays with registered buffers.
std::size_t Selector::one_sync_bytes(Collective collective) const {
  const auto ranks = static_cast<std::size_t>(setting_.rank_count);
  const MemoryModel& measured = setting_.links.memory;
  if (setting_.has_core_for_each_rank) {
    return of_each(reduces(collective) ? measured.reduced : measured.moved);
  }
  const bool reads_all = collective == Collective::all_reduce || collective == Collective::reduce;
  if (reads_all) return of_each(kOneSyncOversubscribedBytes);
  constexpr auto kShared = static_cast<std::size_t>(kOneSyncOversubscribedBytes);
  if (has_root(collective)) return kShared;
  // Each rank stages its share, or a share for each other rank, in one segment.
  const std::size_t slots = collective == Collective::all_gather ? 1 : ranks;
  return std::min(kShared, execution::Window::slot_bytes(slots)) * ranks;
}

// The same with private buffers.
std::size_t Selector::one_sync_private_bytes(Collective collective) const {
  const MemoryModel& measured = setting_.links.memory;
  if (setting_.rank_count > 2) return of_each(measured.private_reduced);
  // With a root, one of two ranks only stages, and can run ahead.
  return has_root(collective) ? kAnyBytes : of_each(measured.private_pair);
}

bool Selector::prefers_single_copy(const OperationDescriptor& operation) const {
  const std::size_t bytes = operation.count * size_bytes(operation.dtype);
  const std::size_t bytes_of_rank = bytes / static_cast<std::size_t>(setting_.rank_count);
  if (reduces(operation.collective) && setting_.rank_count > kSingleCopyReducers) return false;
  switch (operation.collective) {
    // If only one rank takes the result, or each rank a part of it, the ranks that would otherwise
    // wait do the staging. It is as fast as reading as long as it stays in the cache.
    case Collective::reduce:
      return false;
    case Collective::reduce_scatter:
      return bytes_of_rank >= setting_.cache_bytes / 2;
    default:
      return bytes_of_rank >= kSingleCopyBytes;
  }
}

std::string Selector::mapped_thresholds(Collective collective) const {
  const bool has_eager =
      schedule::find_algorithm(collective, Access::mapped, "eager_mapped") != nullptr;
  const std::size_t of_private = one_sync_private_bytes(collective);
  const std::string limit = of_private == kAnyBytes ? "any number" : fmt::format("{}", of_private);
  return fmt::format(
      "one sync up to {} bytes a rank{}, as {}", one_sync_bytes(collective),
      has_eager ? fmt::format(" (private buffers: {})", limit) : "",
      setting_.has_core_for_each_rank ? "each rank has a core" : "ranks share cores");
}

// Chooses for mapped memory: one algorithm for registered buffers and one for others.
Choice Selector::choose_mapped(const OperationDescriptor& operation, bool equal_chunks) const {
  const auto find = [&](std::string_view called) {
    return this->find(operation.collective, called, true, equal_chunks);
  };
  const std::size_t bytes = operation.count * size_bytes(operation.dtype);
  Choice choice;
  if (bytes <= one_sync_private_bytes(operation.collective)) choice.staged = find("eager_mapped");
  if (choice.staged == nullptr) choice.staged = find("staged_mapped");
  const bool skips_direct =
      choice.staged != nullptr && bytes <= one_sync_bytes(operation.collective);
  if (!skips_direct) choice.direct = find("direct_mapped");
  return choice;
}

const Algorithm* Selector::best(const OperationDescriptor& operation, bool equal_chunks) const {
  const auto candidates = this->candidates(operation, equal_chunks);
  return candidates.empty() ? nullptr : candidates.front().algorithm;
}

Result<Choice> Selector::choose(const OperationDescriptor& operation, std::string_view wanted,
                                bool mapped, bool equal_chunks) const {
  const Collective collective = operation.collective;
  Choice choice;
  // A single rank shares memory with no other; a program that names an algorithm for shared memory
  // must still run.
  const bool needs_others = std::ranges::any_of(schedule::algorithms(), [&](const auto& one) {
    return one.collective == collective && one.name == wanted && one.access != Access::messages;
  });
  if (setting_.rank_count == 1 && needs_others) {
    choice.messages = best(operation, equal_chunks);
    return choice;
  }
  if (wanted.empty() && mapped) choice = choose_mapped(operation, equal_chunks);
  const Algorithm* named =
      wanted.empty() ? nullptr : find(collective, wanted, mapped, equal_chunks);
  if (named != nullptr && named->access == Access::mapped) {
    (wanted == "direct_mapped" ? choice.direct : choice.staged) = named;
  }
  if (choice.direct != nullptr || choice.staged != nullptr) return choice;
  choice.messages = wanted.empty() ? best(operation, equal_chunks) : named;
  if (choice.messages != nullptr) return choice;
  return status_of(StatusCode::invalid_argument,
                   "there is no algorithm \"{}\" for {} here; there are: {}", wanted,
                   name(collective), names(collective, mapped, equal_chunks));
}

}  // namespace stretto::group
