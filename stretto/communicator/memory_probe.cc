// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/memory_probe.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "stretto/base/cores.h"
#include "stretto/base/log.h"
#include "stretto/base/take_lines.h"
#include "stretto/communicator/link_cache.h"

namespace stretto::communicator {
namespace {

// For each way and size, the fastest repeat counts, because other work only makes it longer. The
// fastest single run does not count: in it the other ranks had come before, and with one sync it
// costs this rank less than it costs them.
constexpr int kRepeats = 4;
constexpr int kWarmUpRuns = 3;
constexpr int kRuns = 12;
// Sizes are tried from 1/kSpread of the modelled size to kSpread times it. So a measurement on a
// busy machine cannot give numbers that no machine has.
constexpr double kSpread = 4;
constexpr std::size_t kSizes = 5;
constexpr double kAnyBytes = 1e15;
// Taking lines is tried with slots of one to four times kSlotBytes, and with at most
// kTakingRanksMax ranks, or it would take too long. The result also holds for longer slots,
// although taking is a fifth slower there on cores that share a cache: on others it takes a quarter
// of the time, and a virtual machine's cores may be moved from one kind to the other.
constexpr double kSlotBytes = kTakenBytesMin;
constexpr int kTakingRanksMax = 16;
constexpr std::ptrdiff_t kSizesOfShorter = 2;  // Too short for taking lines.
// Taking lines pays if it takes less than kTakenSooner of the time, and does not if it takes more
// than kTakenLater. Where it paid, it took 0.2 to 0.5 of the time. Values between the two decide
// nothing: the machine may be busy.
constexpr double kTakenSooner = 0.8;
constexpr double kTakenLater = 1.1;
// A sync that takes longer has waited for a core, so the whole measurement is discarded.
constexpr double kSyncSecondsMax = 2e-6;
// The same for the whole measurement, which usually takes about 60 milliseconds.
constexpr std::chrono::milliseconds kTimeMax(200);

// An operation that is run in two ways.
struct Case {
  Collective collective;
  bool registered;
  double* bytes;                        // Of all ranks; the middle of the tried sizes.
  std::array<double, kSizes> one, two;  // Seconds.
};

// A model with one sync up to `bytes`.
group::MemoryModel model_of(double bytes, bool takes_lines) {
  return {.reduced = bytes,
          .moved = bytes,
          .private_reduced = bytes,
          .private_pair = bytes,
          .takes_lines = takes_lines};
}

class MemoryProbe {
 public:
  MemoryProbe(Communicator& world, const ChooseBy& choose_by)
      : world_(world), choose_by_(choose_by) {}

  // All ranks run the same operations; rank 0's result counts. Nothing: the machine was busy.
  std::optional<group::MemoryModel> measure() {
    group::MemoryModel found;
    if (!find_taking(found.takes_lines)) return std::nullopt;
    std::array<Case, 3> cases = {
        Case{Collective::all_reduce, true, &found.reduced, {}, {}},
        Case{Collective::all_gather, true, &found.moved, {}, {}},
        Case{Collective::all_reduce,
             false,
             world_.size() == 2 ? &found.private_pair : &found.private_reduced,
             {},
             {}}};
    const bool takes = found.takes_lines;
    if (!compare(cases, model_of(kAnyBytes, takes), model_of(0, takes))) return std::nullopt;
    for (const Case& each : cases) {
      if (each.registered && longest_sync(each) > kSyncSecondsMax) return std::nullopt;
      const double modelled = *each.bytes;
      *each.bytes = modelled / kSpread;
      for (std::size_t i = 0; i < kSizes && each.one[i] <= each.two[i]; ++i) {
        *each.bytes = size_of(modelled, i);
      }
    }
    return found;
  }

 private:
  // Leaves `takes_lines` unchanged if nothing is found. False: it takes too long.
  bool find_taking(bool& takes_lines) {
    if (!kCanTakeLines || world_.size() > kTakingRanksMax) return true;
    double bytes = kSlotBytes * world_.size() * world_.size();
    std::array<Case, 1> cases = {Case{Collective::all_reduce, false, &bytes, {}, {}}};
    if (!compare(cases, model_of(0, true), model_of(0, false))) return false;
    const double taken = total(cases[0].one) / total(cases[0].two);
    if (taken < kTakenSooner || taken > kTakenLater) takes_lines = taken < 1;
    // All ranks must measure the rest with the same value.
    std::uint8_t agreed = takes_lines ? 1 : 0;
    world_.broadcast(std::span(&agreed, 1), {.root = 0}).wait();
    takes_lines = agreed != 0;
    return true;
  }

  static double total(const std::array<double, kSizes>& seconds) {
    return std::accumulate(seconds.begin() + kSizesOfShorter, seconds.end(), 0.0);
  }
  static double longest_sync(const Case& what) {
    double longest = 0;
    for (std::size_t i = 0; i < kSizes; ++i) longest = std::max(longest, what.two[i] - what.one[i]);
    return longest;
  }
  static double size_of(double modelled, std::size_t i) {
    return modelled / kSpread * static_cast<double>(1 << i);
  }

  // Times the cases with each of the two models. False: it takes too long.
  bool compare(std::span<Case> cases, const group::MemoryModel& one,
               const group::MemoryModel& two) {
    for (Case& each : cases) {
      each.one.fill(std::numeric_limits<double>::max());
      each.two = each.one;
    }
    const auto run_all = [&](const group::MemoryModel& model, auto seconds) {
      choose_by_(model);
      return std::ranges::all_of(cases, [&](Case& each) { return run(each, each.*seconds); });
    };
    for (int i = 0; i < kRepeats; ++i) {
      if (!run_all(one, &Case::one) || !run_all(two, &Case::two)) return false;
    }
    return true;
  }

  // False: it takes too long, which rank 0 decides and tells all.
  bool run(const Case& what, std::array<double, kSizes>& seconds_of) {
    const auto count_of = [&](std::size_t i) {
      const double floats = size_of(*what.bytes, i) / sizeof(float) / world_.size();
      return std::max(static_cast<std::size_t>(world_.size()), static_cast<std::size_t>(floats));
    };
    const std::size_t longest = count_of(kSizes - 1);
    std::vector<float> own(what.registered ? 0 : longest);
    const auto memory = world_.allocate<float>(what.registered ? longest : 1);
    const std::span<float> buffer = what.registered ? memory.span() : std::span(own);
    for (std::size_t i = 0; i < kSizes; ++i) {
      const std::span<float> data = buffer.first(count_of(i));
      TimePoint begin;
      for (int run = 0; run < kWarmUpRuns + kRuns; ++run) {
        if (run == kWarmUpRuns) begin = Clock::now();
        if (what.collective == Collective::all_reduce) {
          world_.all_reduce(data).wait();
        } else {
          gather(data);
        }
      }
      seconds_of[i] = std::min(seconds_of[i], seconds(Clock::now() - begin) / kRuns);
      std::uint8_t goes_on = until_.passed() ? 0 : 1;
      world_.broadcast(std::span(&goes_on, 1), {.root = 0}).wait();
      if (goes_on == 0) return false;
    }
    return true;
  }

  void gather(std::span<float> data) {
    const auto ranks = static_cast<std::size_t>(world_.size());
    const std::size_t share = data.size() / ranks;
    const auto own = data.subspan(static_cast<std::size_t>(world_.rank()) * share, share);
    world_.all_gather(own, data.first(share * ranks)).wait();
  }

  Communicator& world_;
  const ChooseBy& choose_by_;
  const Deadline until_ = Deadline::after(kTimeMax);
};

// A stored measurement counts only after two jobs in a row have measured almost the same: other
// work during one measurement may falsify it, and a stored one lasts for a week.
CachedLink agree(Communicator& world, const LinkCacheOptions& cache, const ChooseBy& choose_by) {
  CachedLink finding{.age_seconds = kNotMeasured};
  std::optional<CachedLink> known;
  const std::string text =
      fmt::format("mapped memory of {}: {} ranks, {} usable cores{}", cache.host, world.size(),
                  usable_cores(), writers_stay_owners() ? " that own what they write" : "");
  const std::string path = cache.folder.empty() ? "" : link_cache_path(cache.folder, text);
  if (world.rank() == 0 && !path.empty() && !cache.refresh) {
    known = load_link(path);
    finding = known.value_or(finding);
  }
  const auto share = [&] { share_link(world, 0, "limits of mapped memory", finding); };
  share();
  if (finding.is_confirmed) return finding;
  const auto measured = MemoryProbe(world, choose_by).measure();
  if (measured) finding = {.memory = *measured};
  if (measured && world.rank() == 0 && !path.empty()) {
    finding.is_confirmed = known && are_alike(known->memory, *measured);
    save_link(path, text, finding);
  }
  share();
  return finding;
}

}  // namespace

bool are_alike(const group::MemoryModel& a, const group::MemoryModel& b) {
  const auto near = [](double x, double y) { return x <= 2 * y && y <= 2 * x; };
  return a.takes_lines == b.takes_lines && a.reduced == b.reduced && near(a.moved, b.moved) &&
         near(a.private_reduced, b.private_reduced) && near(a.private_pair, b.private_pair);
}

Status agree_on_memory(Communicator& world, const LinkCacheOptions& cache,
                       const ChooseBy& choose_by, group::LinkModel& model) {
  try {
    const CachedLink finding = agree(world, cache, choose_by);
    model.memory = finding.memory;
    const std::string source = "mapped memory " + (finding.age_seconds == kNotMeasured
                                                       ? "modelled, as the machine was busy"
                                                       : describe_age(finding.age_seconds));
    model.source =
        model.source == group::LinkModel().source ? source : model.source + "; " + source;
  } catch (const Error& error) {
    return error.status();
  }
  if (world.rank() == 0) {
    log(LogLevel::info, "{}: one sync up to {} bytes reduced, {} moved, {} private; lines are {}",
        model.source, model.memory.reduced, model.memory.moved,
        world.size() == 2 ? model.memory.private_pair : model.memory.private_reduced,
        model.memory.takes_lines ? "taken" : "shared");
  }
  return {};
}

}  // namespace stretto::communicator
