// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/link_probe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "stretto/base/cores.h"
#include "stretto/base/log.h"
#include "stretto/base/printable.h"
#include "stretto/communicator/all_gather_value.h"
#include "stretto/communicator/contention_probe.h"
#include "stretto/communicator/link_cache.h"
#include "stretto/transport/transport.h"

namespace stretto::communicator {
namespace {

constexpr int kWarmUpRounds = 20;
constexpr int kRoundsMax = 400;
constexpr int kLargeRoundsMax = 12;
constexpr int kBurst = 32;
constexpr std::size_t kLargeBytes = std::size_t{1} << 20;
// On a network, messages are up to this many times as long, as far as they take no longer than
// kLargeTime, because shapers let through at once what a link carries in about a millisecond. If
// the latency takes most of the time, they have the full length, because shorter ones would not
// fill the link.
constexpr unsigned kFactorMax = 8;
constexpr std::size_t kNetworkBytesMax = kFactorMax * kLargeBytes;
constexpr std::chrono::milliseconds kSmallTime(20);
constexpr std::chrono::milliseconds kLargeTime(40);
constexpr std::chrono::milliseconds kNetworkTime(60);  // For the messages that measure speed.
constexpr std::uint8_t kGoOn = 1;

// Two ranks that measure. It may be empty.
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

// Gives each rank of the host of `first` a host number of its own; other ranks get -1.
group::HostList ranks_of_host(const group::HostList& hosts, Rank first) {
  group::HostList result(hosts.size(), -1);
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    if (hosts[rank] == hosts[first]) result[rank] = static_cast<int>(rank);
  }
  return result;
}

// The first rank, and the first one on another host.
Pair network_pair(const group::HostList& hosts) {
  for (std::size_t b = 1; b < hosts.size(); ++b) {
    if (hosts[b] != hosts[0]) return {0, static_cast<int>(b)};
  }
  return {};
}

// One side of a measurement.
class LinkProbe {
 public:
  // `between_hosts`: the link is a network. It carries both directions at once, as collectives use
  // it, and may be shaped. Inside a host, processors move the bytes.
  LinkProbe(Communicator& world, Rank other, bool between_hosts)
      : world_(world),
        other_(other),
        between_hosts_(between_hosts),
        sent_(between_hosts ? kNetworkBytesMax : kLargeBytes),
        received_(sent_.size()) {}

  schedule::LinkCost lead() {
    schedule::LinkCost cost;
    small_round_ = rounds(1, Way::in_turn, kRoundsMax, kSmallTime);
    between_hosts_ ? lead_network(cost) : lead_memory(cost);
    const double burst = lead_burst();
    // Where two ranks share a core, messages in both directions take twice as long as in one.
    const double both_ways = between_hosts_ ? 0 : rounds(1, Way::at_once, kRoundsMax, kSmallTime);
    const double one_way = std::max(small_round_ / 2, both_ways);
    // The model charges message_seconds to both ends and counts the rest as latency.
    cost.message_seconds = std::clamp((burst - small_round_) / (kBurst - 1), 20e-9, one_way / 4);
    cost.latency_seconds = one_way - 2 * cost.message_seconds;
    return cost;
  }
  // The round trip time of one byte, after lead().
  double small_round() const { return small_round_; }

  void follow() {
    follow_rounds(1, Way::in_turn);
    between_hosts_ ? follow_network() : follow_memory();
    for (int i = 0; i < kBurst; ++i) recv(1);
    send(1);
    if (!between_hosts_) follow_rounds(1, Way::at_once);
  }

 private:
  // Ping-pong, or both directions at once.
  enum class Way { in_turn, at_once };

  void lead_memory(schedule::LinkCost& cost) {
    const double medium = rounds(kLargeBytes / 4, Way::in_turn, kLargeRoundsMax, kLargeTime);
    const double large = rounds(kLargeBytes, Way::in_turn, kLargeRoundsMax, kLargeTime);
    cost.seconds_per_byte = by_more(medium / 2, large / 2, kLargeBytes);
  }
  void follow_memory() {
    follow_rounds(kLargeBytes / 4, Way::in_turn);
    follow_rounds(kLargeBytes, Way::in_turn);
  }
  void lead_network(schedule::LinkCost& cost) {
    const double first = rounds(kLargeBytes, Way::at_once, kLargeRoundsMax, kLargeTime);
    const bool is_long = first < 2 * small_round_;
    const double wanted = is_long ? kFactorMax : seconds(kLargeTime) / first;
    const auto factor =
        std::bit_floor(static_cast<unsigned>(std::clamp<double>(wanted, 1, kFactorMax)));
    sent_[0] = static_cast<std::uint8_t>(factor);
    send(1);
    const std::size_t bytes = factor * kLargeBytes;
    const double large =
        factor == 1 ? first : rounds(bytes, Way::at_once, kLargeRoundsMax, kNetworkTime);
    const double medium = rounds(bytes / 4, Way::at_once, kLargeRoundsMax, kNetworkTime);
    // A byte takes at least its share of the whole time without latency. If the difference says
    // less, the quarter was slowed down while congestion control found the link's speed again.
    const double least = (large - small_round_ / 2) / static_cast<double>(bytes);
    cost.seconds_per_byte = std::max(by_more(medium, large, bytes), least);
    // Shapers let about as much through at once as a link carries in a millisecond. ContentionProbe
    // finds out whether this link has one.
    cost.burst_bytes = std::min<double>(kLargeBytes, 1e-3 / cost.seconds_per_byte);
  }
  void follow_network() {
    follow_rounds(kLargeBytes, Way::at_once);
    recv(1);
    const std::size_t factor = received_[0];
    if (!std::has_single_bit(factor) || factor > kFactorMax) {
      throw ProtocolError(status_of(StatusCode::protocol,
                                    "rank {} measures links by {} MiB, and 1, 2, 4 or 8 are meant",
                                    other_.value(), factor));
    }
    if (factor > 1) follow_rounds(factor * kLargeBytes, Way::at_once);
    follow_rounds(factor * kLargeBytes / 4, Way::at_once);
  }
  // The time per byte by the difference of two lengths, as some networks let the first bytes
  // through at once.
  static double by_more(double quarter_seconds, double whole_seconds, std::size_t whole_bytes) {
    const double more_bytes = 0.75 * static_cast<double>(whole_bytes);
    return std::max(1e-12, (whole_seconds - quarter_seconds) / more_bytes);
  }

  Work begin_send(std::size_t bytes) {
    return world_.send(std::span<const std::uint8_t>(sent_).first(bytes),
                       {.to = other_, .tag = kProbeTag});
  }
  void send(std::size_t bytes) { begin_send(bytes).wait(); }
  void recv(std::size_t bytes) {
    world_.recv(std::span(received_).first(bytes), {.from = other_, .tag = kProbeTag}).wait();
  }

  // Uses messages short enough to be sent without a clear, as the clear would wait behind the bytes
  // of the other direction.
  void exchange(std::size_t bytes) {
    std::vector<Work> works;
    for (std::size_t at = 0; at < bytes; at += transport::kEagerBytes) {
      const std::size_t count = std::min(transport::kEagerBytes, bytes - at);
      works.push_back(
          world_.recv(std::span(received_).subspan(at, count), {.from = other_, .tag = kProbeTag}));
      works.push_back(world_.send(std::span<const std::uint8_t>(sent_).subspan(at, count),
                                  {.to = other_, .tag = kProbeTag}));
    }
    for (Work& work : works) work.wait();
  }

  // The time of a round. In turn: the 0.1 quantile, because other work on the cores makes rounds
  // longer. Both directions at once: the median, because bytes that a shaper had queued while no
  // rank ran also make rounds shorter; for one byte, mean_of_faster().
  double rounds(std::size_t bytes, Way way, int rounds_max, Duration time) {
    std::vector<double> seconds_of_rounds;
    const TimePoint end = Clock::now() + time;
    const int warm_up = bytes == 1 ? kWarmUpRounds : 1;
    bool more = true;
    for (int i = 0; more; ++i) {
      const TimePoint begin = Clock::now();
      more = i < rounds_max + warm_up && (begin < end || i <= warm_up + 2);
      sent_[0] = more ? kGoOn : 0;
      if (way == Way::in_turn) {
        send(bytes);
        recv(bytes);
      } else {
        exchange(bytes);
      }
      if (i >= warm_up) seconds_of_rounds.push_back(seconds(Clock::now() - begin));
    }
    if (way == Way::at_once && bytes == 1) return mean_of_faster(std::move(seconds_of_rounds));
    return quantile(std::move(seconds_of_rounds), way == Way::in_turn ? 0.1 : 0.5);
  }
  void follow_rounds(std::size_t bytes, Way way) {
    bool more = true;
    while (more) {
      way == Way::in_turn ? recv(bytes) : exchange(bytes);
      more = received_[0] == kGoOn;
      if (way == Way::in_turn) send(bytes);
    }
  }

  double lead_burst() {
    const TimePoint begin = Clock::now();
    std::vector<Work> works;
    for (int i = 0; i < kBurst; ++i) works.push_back(begin_send(1));
    for (Work& work : works) work.wait();
    recv(1);
    return seconds(Clock::now() - begin);
  }

  Communicator& world_;
  Rank other_;
  bool between_hosts_;
  std::vector<std::uint8_t> sent_;
  std::vector<std::uint8_t> received_;
  double small_round_ = 0;
};

// Returns the names of all ranks' hosts.
RankVector<std::string> gather_hosts(Communicator& world, const std::string& own) {
  ToldHost told{};
  (void)own.copy(told.data(), told.size() - 1);
  RankVector<std::string> names;
  for (ToldHost& each : communicator::all_gather_value(world, told, std::nullopt)) {
    each.back() = 0;
    names.push_back(printable(each.data()));
  }
  return names;
}

// Describes a link for the cache: its kind, the cores, and how many ranks of which hosts measure.
std::string link_text(const Communicator& world, const Pair& pair, std::string_view where,
                      bool between_hosts, const LinkCacheOptions& cache,
                      std::string_view measuring) {
  return fmt::format(
      "{}: {}{}; {} usable cores; ranks at once: {}", where, world.describe_link(pair.partner),
      between_hosts && !cache.congestion_control.empty() ? ", " + cache.congestion_control : "",
      usable_cores(), measuring);
}

// Measures with the pair, and then with all ranks that take part in `contention`, which `measuring`
// describes.
CachedLink probe(Communicator& world, const Pair& pair, std::string_view where, bool between_hosts,
                 const LinkCacheOptions& cache, ContentionProbe& contention,
                 std::string_view measuring) {
  CachedLink finding;
  if (world.rank() == pair.partner) {
    std::array<std::uint8_t, 1> measure{};
    world.recv(measure, {.from = pair.leader, .tag = kProbeTag}).wait();
    if (measure[0] != 0) LinkProbe(world, pair.leader, between_hosts).follow();
  }
  if (world.rank() != pair.leader) {
    if (contention.takes_part()) (void)contention.run({});
    return finding;
  }
  const std::string text = link_text(world, pair, where, between_hosts, cache, measuring);
  const std::string path = cache.folder.empty() ? "" : link_cache_path(cache.folder, text);
  const auto known = path.empty() || cache.refresh ? std::optional<CachedLink>() : load_link(path);
  const std::array<std::uint8_t, 1> measure = {known ? std::uint8_t{0} : std::uint8_t{1}};
  world.send(measure, {.to = pair.partner, .tag = kProbeTag}).wait();
  if (known) {
    (void)contention.run({});
    return *known;
  }
  LinkProbe lead(world, pair.partner, between_hosts);
  finding.cost = lead.lead();
  auto rounds = contention.rounds_for(finding.cost, lead.small_round());
  if (!between_hosts) rounds.many = {};
  set_shared_costs(contention.run(rounds), finding.cost);
  if (!path.empty()) save_link(path, text, finding);
  return finding;
}

std::string describe(std::string_view what, const CachedLink& finding) {
  const schedule::LinkCost& cost = finding.cost;
  return fmt::format(
      "{} {:.2f} us + {:.2f} us a message{}, {:.2f} GB/s{}, {:.1f} GB/s reduced ({})", what,
      cost.latency_seconds * 1e6, cost.message_seconds * 1e6,
      cost.further_message_seconds <= cost.message_seconds
          ? ""
          : fmt::format(" and {:.2f} us each further", cost.further_message_seconds * 1e6),
      1e-9 / cost.seconds_per_byte,
      cost.burst_bytes < 1024
          ? ""
          : fmt::format(" after {:.0f} KiB at once ({:.2f} ns a byte)", cost.burst_bytes / 1024,
                        1e9 * cost.burst_seconds_per_byte),
      1e-9 / cost.reduce_seconds_per_byte, describe_age(finding.age_seconds));
}

}  // namespace

LinkCacheOptions link_cache_options(const Environment& environment) {
  const auto wanted = environment.get("STRETTO_LINK_CACHE");
  if (wanted == "off") return {};
  LinkCacheOptions options{
      .folder = {},
      .refresh = wanted == "refresh",
      .congestion_control = environment.get("STRETTO_CONGESTION_CONTROL").value_or("")};
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
    const RankVector<std::string> names = gather_hosts(world, cache.host);
    for (const bool local : {true, false}) {
      const Pair& pair = pairs[local ? 0 : 1];
      if (!pair.exists()) continue;
      const std::string_view where = local ? "inside a host" : "between hosts";
      ContentionProbe contention(world, local ? ranks_of_host(hosts, pair.leader) : hosts);
      CachedLink finding =
          probe(world, pair, where, !local, cache, contention, contention.describe(names));
      share_link(world, pair.leader, "costs of a link", finding);
      (local ? model.local : model.network) = finding.cost;
      source += (source.empty() ? "" : "; ") + describe(where, finding);
    }
  } catch (const Error& error) {
    return error.status();
  }
  // A sync waits for the other ranks' cores, as a message of theirs would.
  if (pairs[0].exists()) {
    model.local.sync_seconds = model.local.latency_seconds + 2 * model.local.message_seconds;
    model.network.sync_seconds = model.local.sync_seconds;
  }
  if (!source.empty()) model.source = source;
  if (world.rank() == 0) log(LogLevel::info, "links: {}", model.source);
  return model;
}

}  // namespace stretto::communicator
