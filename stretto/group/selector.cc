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

// Where ranks wait for each other's cores a sync takes a microsecond and more: one saves time up to
// here, by all ranks together.
constexpr double kOneSyncOversubscribedBytes = 64 * 1024;
// From here on, by each rank, copying once takes less time than staging; for some reductions see
// prefers_single_copy().
constexpr std::size_t kSingleCopyBytes = 256 * 1024;
// Of a reduction by more ranks, the pieces that fit into the scratch are too small to pay.
constexpr int kSingleCopyReducers = 16;
constexpr double kRounding = 1e-6;
constexpr std::size_t kSegmentBytesMax = 256 * 1024;
constexpr std::size_t kSegmentBytesMin = 32 * 1024;
constexpr std::size_t kScratchBytes = 8 * 1024 * 1024;
constexpr std::size_t kAnyBytes = std::numeric_limits<std::size_t>::max();

// Enough to keep a link, the reduction and the peer's reduction busy at the same time, and what a
// long network may add.
constexpr std::size_t kLanesOfMessages = 4;
constexpr std::size_t kLanesMax = execution::Window::kLanes;
// Each lane waits for the ranks of its host as well, which may have to wait for a core: where
// others used the cores, twice as many lanes took 0.6 to 0.8 of the time.
constexpr std::size_t kLanesOfTeams = 8;
// A wire that takes so many times as long for a byte as a reduction in a cache leaves processors
// the time to fetch what is staged from memory again. Where it is faster, fewer lanes with less in
// them took 0.75 to 0.85 of the time (4 and 16 MiB at 10 Gbit/s), as what is staged stays in the
// caches.
constexpr double kSlowWire = 128;
// A way that takes more than this share of an operation's time makes it longer by more than a lost
// packet itself, if the operation has to wait for one more.
constexpr double kLongWay = 0.1;

// The longest segment of which each message leaves without its receive, that of a partial sum too
// where there are such. A longer one waits until it is cleared, and what clears it waits behind all
// that is under way in the other direction: where ranks are alone on their hosts, the link rests
// for a quarter of the time.
std::size_t eager_segment_bytes(const OperationDescriptor& operation) {
  const DType sent =
      reduces(operation.collective) ? accumulation_dtype(operation.dtype) : operation.dtype;
  return transport::kEagerBytes / size_bytes(sent) * size_bytes(operation.dtype);
}

// With all ranks on one host, their number says nothing.
std::span<const std::int32_t> several(const HostList& hosts) {
  const bool one_host = std::ranges::all_of(hosts, [](std::int32_t host) { return host == 0; });
  return one_host ? std::span<const std::int32_t>() : hosts;
}

// Where the wire is what takes the time, many cost the same. Who waits and works least beside it
// leaves most to what a program computes meanwhile. What differs by how sums are rounded only is
// told apart by its place in the catalogue.
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

// Names are unique per collective, whatever the access. Null: there is none that can be used.
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

// Until the answer to the first byte comes back.
double Selector::bytes_under_way() const {
  return 2 * link().latency_seconds / link().seconds_per_byte;
}

// Small enough that the scratch of a lane stays bounded when every rank sends to every other.
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
    // All lanes together fill a long network nevertheless.
    const double share = std::min<double>(bytes_under_way() / kLanesMax, kSegmentBytesMax);
    bytes =
        std::min(bytes, std::max(eager_segment_bytes(operation), static_cast<std::size_t>(share)));
  }
  return setting_.segment_bytes > 0 ? std::min(bytes, setting_.segment_bytes) : bytes;
}

// A long network has to be filled.
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

// How long it would take if bytes on a link took no time. Segments wait for the wire, not for each
// other, where that takes the time.
double Selector::estimate_beside_wire(const Algorithm& algorithm,
                                      const OperationDescriptor& operation) const {
  schedule::CostQuery instant = query(algorithm, operation);
  instant.segment_bytes = instant.lanes = 0;
  instant.link.seconds_per_byte = instant.link.burst_bytes = 0;
  instant.link.burst_seconds_per_byte = 0;
  return schedule::estimate(algorithm, summary_, instant);
}

// Whoever sends all at once needs a congestion window as large as that, since acknowledgements wait
// behind what comes the other way. After a lost packet the window is smaller, and the last bytes
// wait for a further way: 64 KiB on 2x2, at 100 Mbit/s, 1 ms and 0.1 % of loss, took 1.15 times as
// long as in two exchanges of half the bytes.
bool Selector::is_one_long_exchange(const Candidate& candidate) const {
  const double way = link().latency_seconds;
  return way > kLongWay * candidate.seconds && candidate.seconds_beside_wire < 2 * way;
}

std::vector<Selector::Candidate> Selector::candidates(const OperationDescriptor& operation,
                                                      bool equal_chunks) const {
  std::vector<Candidate> candidates;
  for (const Algorithm& algorithm : schedule::algorithms()) {
    if (algorithm.collective != operation.collective) continue;
    // Any other order would make the bits depend on the algorithm.
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
    if (!is_meant || !schedule::is_estimated(algorithm)) continue;
    others.push_back({&algorithm, estimate(algorithm, operation)});
  }
  return others;
}

// Up to how many bytes one sync pays for registered buffers.
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
  // Each rank stages its share, or one for each other rank: in one segment.
  const std::size_t slots = collective == Collective::all_gather ? 1 : ranks;
  return std::min(kShared, execution::Window::slot_bytes(slots)) * ranks;
}

// The same for private ones.
std::size_t Selector::one_sync_private_bytes(Collective collective) const {
  const MemoryModel& measured = setting_.links.memory;
  if (setting_.rank_count > 2) return of_each(measured.private_reduced);
  // One of two has nothing to do but to stage, and runs ahead.
  return has_root(collective) ? kAnyBytes : of_each(measured.private_pair);
}

bool Selector::prefers_single_copy(const OperationDescriptor& operation) const {
  const std::size_t bytes = operation.count * size_bytes(operation.dtype);
  const std::size_t bytes_of_rank = bytes / static_cast<std::size_t>(setting_.rank_count);
  if (reduces(operation.collective) && setting_.rank_count > kSingleCopyReducers) return false;
  switch (operation.collective) {
    // Where only one rank, or each a part, takes the results, staging is done by those who would
    // otherwise wait, as fast as others can read it, as long as it stays in the cache.
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

// Chooses for mapped memory: what runs on registered buffers, and what on others.
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
  // Alone, a rank shares memory with nobody; a program that names an algorithm for it still runs.
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
