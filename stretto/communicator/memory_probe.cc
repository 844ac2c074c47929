// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/memory_probe.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "stretto/base/cores.h"
#include "stretto/base/host_name.h"
#include "stretto/base/log.h"
#include "stretto/communicator/link_cache.h"

namespace stretto::communicator {
namespace {

// Of each way and size: the quickest repeat counts, because what else runs makes it longer only.
// Not the quickest run: that is one in which the others had come before, and with one sync it costs
// less than it costs them.
constexpr int kRepeats = 4;
constexpr int kWarmUpRuns = 3;
constexpr int kRuns = 12;
// Sizes are tried from this part of what is modelled to as many times it. A machine that was busy
// with something else is not taken for one that differs more from all others.
constexpr double kSpread = 4;
constexpr std::size_t kSizes = 5;
constexpr double kAnyBytes = 1e15;
// A sync that takes longer has waited for a core, so nothing that was measured means anything.
constexpr double kSyncSecondsMax = 2e-6;
// The same of the whole measurement, which takes some forty milliseconds.
constexpr std::chrono::milliseconds kTimeMax(200);

struct Case {
  Collective collective;
  bool registered;
  double* bytes;                        // What is modelled; to be replaced by what is found.
  std::array<double, kSizes> one, two;  // Seconds, with one sync and with two.
};

class OneSyncProbe {
 public:
  OneSyncProbe(Communicator& world, const ChooseBy& choose_by)
      : world_(world), choose_by_(choose_by) {}

  // All ranks run the same; what rank 0 returns counts. Nothing: the machine was busy.
  std::optional<group::OneSyncBytes> measure() {
    group::OneSyncBytes found;
    std::array<Case, 3> cases = {
        Case{Collective::all_reduce, true, &found.reduced, {}, {}},
        Case{Collective::all_gather, true, &found.moved, {}, {}},
        Case{Collective::all_reduce,
             false,
             world_.size() == 2 ? &found.private_pair : &found.private_reduced,
             {},
             {}}};
    for (Case& each : cases) {
      each.one.fill(std::numeric_limits<double>::max());
      each.two = each.one;
    }
    for (int i = 0; i < kRepeats; ++i) {
      choose_by_({kAnyBytes, kAnyBytes, kAnyBytes, kAnyBytes});
      for (Case& each : cases) {
        if (!run(each, each.one)) return std::nullopt;
      }
      choose_by_({0, 0, 0, 0});
      for (Case& each : cases) {
        if (!run(each, each.two)) return std::nullopt;
      }
    }
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
  static double longest_sync(const Case& what) {
    double longest = 0;
    for (std::size_t i = 0; i < kSizes; ++i) longest = std::max(longest, what.two[i] - what.one[i]);
    return longest;
  }
  static double size_of(double modelled, std::size_t i) {
    return modelled / kSpread * static_cast<double>(1 << i);
  }

  // False: it takes too long, as rank 0 has told all.
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

// What rank 0 has to say.
struct FoundBytes {
  group::OneSyncBytes bytes = {};
  std::int64_t age_seconds = 0;
  std::int64_t found = 0;
};

// What is remembered counts once two jobs in a row have measured almost the same: whatever else
// runs while one measures may make it wrong, and that would last for a week.
FoundBytes agree(Communicator& world, const LinkCacheOptions& cache, const ChooseBy& choose_by) {
  FoundBytes finding;
  std::optional<CachedLink> known;
  const std::string text = fmt::format("mapped memory of {}: {} ranks, {} usable cores",
                                       host_name(), world.size(), usable_cores());
  const std::string path = cache.folder.empty() ? "" : link_cache_path(cache.folder, text);
  if (world.rank() == 0 && !path.empty() && !cache.refresh) {
    known = load_link(path);
    if (known) finding = {known->one_sync, age_seconds(*known), known->confirmed > 0 ? 1 : 0};
  }
  const auto share = [&] {
    world.broadcast(std::as_writable_bytes(std::span(&finding, 1)), {.root = 0}).wait();
  };
  share();
  if (finding.found != 0) return finding;
  const auto measured = OneSyncProbe(world, choose_by).measure();
  if (measured) finding = {.bytes = *measured, .found = 1};
  if (!measured && known) finding.found = 1;
  if (measured && world.rank() == 0 && !path.empty()) {
    const bool is_confirmed = known && are_alike(known->one_sync, *measured);
    save_link(path, text,
              {.one_sync = finding.bytes,
               .confirmed = is_confirmed ? 1.0 : 0.0,
               .measured_at = std::chrono::system_clock::now()});
  }
  share();
  return finding;
}

}  // namespace

bool are_alike(const group::OneSyncBytes& a, const group::OneSyncBytes& b) {
  const auto near = [](double x, double y) { return x <= 2 * y && y <= 2 * x; };
  return a.reduced == b.reduced && near(a.moved, b.moved) &&
         near(a.private_reduced, b.private_reduced) && near(a.private_pair, b.private_pair);
}

Status agree_on_one_sync(Communicator& world, const LinkCacheOptions& cache,
                         const ChooseBy& choose_by, group::LinkModel& model) {
  try {
    const FoundBytes finding = agree(world, cache, choose_by);
    model.one_sync = finding.bytes;
    const std::string source =
        "mapped memory " + (finding.found != 0 ? describe_age(finding.age_seconds)
                                               : "modelled, as the machine was busy");
    model.source =
        model.source == group::LinkModel().source ? source : model.source + "; " + source;
  } catch (const Error& error) {
    return error.status();
  }
  if (world.rank() == 0) {
    log(LogLevel::info, "{}: one sync up to {} bytes reduced, {} moved, {} private", model.source,
        model.one_sync.reduced, model.one_sync.moved,
        world.size() == 2 ? model.one_sync.private_pair : model.one_sync.private_reduced);
  }
  return {};
}

}  // namespace stretto::communicator
