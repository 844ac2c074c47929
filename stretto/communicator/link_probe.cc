// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/link_probe.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "stretto/base/cores.h"
#include "stretto/base/host_name.h"
#include "stretto/base/log.h"
#include "stretto/communicator/link_cache.h"
#include "stretto/kernel/reduce.h"

namespace stretto::communicator {
namespace {

constexpr int kTag = std::numeric_limits<int>::max();
constexpr int kWarmUpRounds = 20;
constexpr int kRoundsMax = 400;
constexpr int kLargeRoundsMax = 12;
constexpr int kBurst = 32;
constexpr std::size_t kLargeBytes = std::size_t{1} << 20;
constexpr std::chrono::milliseconds kSmallTime(20);
constexpr std::chrono::milliseconds kLargeTime(40);
constexpr std::uint8_t kGoOn = 1;

// Two ranks that measure, or none.
struct Pair {
  Rank leader = -1;
  Rank partner = -1;
  bool exists() const { return leader >= 0; }
};

// The first two ranks of a host.
Pair local_pair(const group::HostList& hosts) {
  for (std::size_t a = 0; a < hosts.size(); ++a) {
    for (std::size_t b = a + 1; b < hosts.size(); ++b) {
      if (hosts[a] == hosts[b]) return {static_cast<int>(a), static_cast<int>(b)};
    }
  }
  return {};
}

// The first rank, and the first one on another host.
Pair network_pair(const group::HostList& hosts) {
  for (std::size_t b = 1; b < hosts.size(); ++b) {
    if (hosts[b] != hosts[0]) return {0, static_cast<int>(b)};
  }
  return {};
}

// One side of a measurement.
class Probe {
 public:
  Probe(Communicator& world, Rank other) : world_(world), other_(other), large_(kLargeBytes) {}

  schedule::LinkCost lead() {
    const double small_round = rounds(1, kRoundsMax, kSmallTime);
    const double medium_round = rounds(kLargeBytes / 4, kLargeRoundsMax, kLargeTime);
    const double large_round = rounds(kLargeBytes, kLargeRoundsMax, kLargeTime);
    const double burst = lead_burst();
    schedule::LinkCost cost;
    const double one_way = small_round / 2;
    // The model charges a message's time to both its ends and counts the rest as the way.
    cost.message_seconds = std::clamp((burst - small_round) / (kBurst - 1), 20e-9, one_way / 4);
    cost.latency_seconds = one_way - 2 * cost.message_seconds;
    // By what more bytes take: some networks let the first ones through at once.
    cost.seconds_per_byte = std::max(
        1e-12, (large_round - medium_round) / 2 / (0.75 * static_cast<double>(kLargeBytes)));
    cost.reduce_seconds_per_byte = reduction();
    return cost;
  }

  void follow() {
    follow_rounds(1);
    follow_rounds(kLargeBytes / 4);
    follow_rounds(kLargeBytes);
    for (int i = 0; i < kBurst; ++i) recv(1);
    send(1);
  }

 private:
  void send(std::size_t bytes) {
    world_.send(std::span<const std::uint8_t>(large_).first(bytes), {.to = other_, .tag = kTag})
        .wait();
  }
  void recv(std::size_t bytes) {
    world_.recv(std::span(large_).first(bytes), {.from = other_, .tag = kTag}).wait();
  }

  // The time of a message to the other and back: that of the fastest tenth, because what else runs
  // on the cores makes a round longer, and says nothing about the link.
  double rounds(std::size_t bytes, int rounds_max, Duration time) {
    std::vector<double> seconds_of_rounds;
    const TimePoint end = Clock::now() + time;
    const int warm_up = bytes == 1 ? kWarmUpRounds : 1;
    bool more = true;
    for (int i = 0; more; ++i) {
      const TimePoint begin = Clock::now();
      more = i < rounds_max + warm_up && (begin < end || i <= warm_up + 2);
      large_[0] = more ? kGoOn : 0;
      send(bytes);
      recv(bytes);
      if (i >= warm_up) seconds_of_rounds.push_back(seconds(Clock::now() - begin));
    }
    const auto fast = seconds_of_rounds.begin() + std::ssize(seconds_of_rounds) / 10;
    std::nth_element(seconds_of_rounds.begin(), fast, seconds_of_rounds.end());
    return *fast;
  }
  void follow_rounds(std::size_t bytes) {
    bool more = true;
    while (more) {
      recv(bytes);
      more = large_[0] == kGoOn;
      send(bytes);
    }
  }

  double lead_burst() {
    const TimePoint begin = Clock::now();
    std::vector<Work> works;
    for (int i = 0; i < kBurst; ++i) {
      works.push_back(
          world_.send(std::span<const std::uint8_t>(large_).first(1), {.to = other_, .tag = kTag}));
    }
    for (Work& work : works) work.wait();
    recv(1);
    return seconds(Clock::now() - begin);
  }

  // Per byte that a sum of two buffers in the cache reads.
  double reduction() {
    std::vector<float> a(kLargeBytes / 16), b(a.size());
    const std::array<kernel::Input, 2> inputs = {kernel::Input{a.data(), DType::f32},
                                                 kernel::Input{b.data(), DType::f32}};
    void* output = a.data();
    double best = std::numeric_limits<double>::max();
    for (int i = 0; i < 10; ++i) {
      const TimePoint begin = Clock::now();
      kernel::reduce({.count = a.size(), .inputs = inputs, .outputs = {&output, 1}}).or_throw();
      best = std::min(best, seconds(Clock::now() - begin));
    }
    return std::max(1e-13, best / static_cast<double>(2 * a.size() * sizeof(float)));
  }

  Communicator& world_;
  Rank other_;
  std::vector<std::uint8_t> large_;
};

// What a rank has found out, as all ranks hear of it.
struct Finding {
  schedule::LinkCost cost = {};
  std::int64_t age_seconds = 0;
  std::int64_t found = 0;
};

// What a link is: between which hosts, of what kind, and for how many ranks to a core.
std::string link_text(const Communicator& world, const Pair& pair, std::string_view where) {
  return fmt::format("{} from {}: {}; {} usable cores", where, host_name(),
                     world.describe_link(pair.partner), usable_cores());
}

Finding probe(Communicator& world, const Pair& pair, std::string_view where,
              const LinkCacheOptions& cache) {
  Finding finding;
  if (world.rank() == pair.partner) {
    std::array<std::uint8_t, 1> measure{};
    world.recv(measure, {.from = pair.leader, .tag = kTag}).wait();
    if (measure[0] != 0) Probe(world, pair.leader).follow();
  }
  if (world.rank() != pair.leader) return finding;
  const std::string text = link_text(world, pair, where);
  const std::string path = cache.folder.empty() ? "" : link_cache_path(cache.folder, text);
  const auto known = path.empty() || cache.refresh ? std::optional<CachedLink>() : load_link(path);
  const std::array<std::uint8_t, 1> measure = {known ? std::uint8_t{0} : std::uint8_t{1}};
  world.send(measure, {.to = pair.partner, .tag = kTag}).wait();
  finding.found = 1;
  if (known) {
    finding.cost = known->cost;
    finding.age_seconds = age_seconds(*known);
    return finding;
  }
  finding.cost = Probe(world, pair.partner).lead();
  if (!path.empty()) {
    save_link(path, text, {.cost = finding.cost, .measured_at = std::chrono::system_clock::now()});
  }
  return finding;
}

// Everybody takes what the pair's leader has found.
Finding share(Communicator& world, const Pair& pair, const Finding& own) {
  Finding finding = own;
  world.broadcast(std::as_writable_bytes(std::span(&finding, 1)), {.root = pair.leader}).wait();
  return finding;
}

std::string describe(std::string_view what, const Finding& finding) {
  const schedule::LinkCost& cost = finding.cost;
  return fmt::format("{} {:.2f} us + {:.2f} us a message, {:.2f} GB/s ({})", what,
                     cost.latency_seconds * 1e6, cost.message_seconds * 1e6,
                     1e-9 / cost.seconds_per_byte, describe_age(finding.age_seconds));
}

}  // namespace

LinkCacheOptions link_cache_options(const Environment& environment) {
  const auto wanted = environment.get("STRETTO_LINK_CACHE");
  if (wanted == "off") return {};
  LinkCacheOptions options{.folder = {}, .refresh = wanted == "refresh"};
  if (wanted && !options.refresh) {
    options.folder = *wanted;
  } else if (const auto xdg = environment.get("XDG_CACHE_HOME")) {
    options.folder = *xdg + "/stretto";
  } else if (const auto home = environment.get("HOME")) {
    options.folder = *home + "/.cache/stretto";
  }
  return options;
}

Result<group::LinkModel> agree_on_links(Communicator& world, const group::HostList& hosts,
                                        const LinkCacheOptions& cache) {
  group::LinkModel model;
  std::string source;
  const std::array pairs = {local_pair(hosts), network_pair(hosts)};
  try {
    for (const bool local : {true, false}) {
      const Pair& pair = pairs[local ? 0 : 1];
      if (!pair.exists()) continue;
      const std::string_view where = local ? "inside a host" : "between hosts";
      const Finding finding = share(world, pair, probe(world, pair, where, cache));
      (local ? model.local : model.network) = finding.cost;
      source += (source.empty() ? "" : "; ") + describe(where, finding);
    }
  } catch (const Error& error) {
    return error.status();
  }
  if (!source.empty()) model.source = source;
  if (world.rank() == 0) log(LogLevel::info, "links: {}", model.source);
  return model;
}

}  // namespace stretto::communicator
