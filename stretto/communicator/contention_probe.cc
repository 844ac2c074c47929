// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/contention_probe.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <numeric>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "stretto/kernel/reduce.h"
#include "stretto/transport/transport.h"

namespace stretto::communicator {
namespace {

constexpr std::size_t kHostsMax = 4;
constexpr std::size_t kRanksMax = 4;  // Of each host.
constexpr double kLeastLatencySeconds = 1e-7;
constexpr double kLeastMessageSeconds = 20e-9;
constexpr double kLeastSecondsPerByte = 1e-13;
// Bytes have passed at once if they took less than this share of their time in a long transfer.
constexpr double kAtOnce = 0.8;
// Everything is measured in several turns, small messages in twice as many. The number of turns is
// how many round trips fit into kTurnsTime, within these limits.
constexpr int kTurnsMin = 2;
constexpr int kTurnsMax = 8;
constexpr std::chrono::milliseconds kTurnsTime(10);
constexpr std::chrono::milliseconds kRest(2);            // A shaper regains its burst.
constexpr std::chrono::milliseconds kContentionTime(3);  // For a turn's small messages.
// Longer loads wait for the link, not for cores.
constexpr std::chrono::milliseconds kLoadTime(30);
constexpr std::int32_t kManyMessages = 16;
constexpr std::int32_t kManyRounds = 6;
constexpr std::int32_t kFewMessages = 4;
constexpr int kWakingRounds = 3;
// Buffers that exceed the caches of a core, reduced so often that it takes longer than a time slice
// of ranks that share a core.
constexpr std::size_t kReducedBytes = std::size_t{1} << 20;
constexpr int kReductions = 32;
constexpr int kReductionTurns = 4;  // At most, as a turn takes long if many ranks share a core.

}  // namespace

double mean_of_faster(std::vector<double> seconds_of_rounds) {
  std::ranges::sort(seconds_of_rounds);
  seconds_of_rounds.resize(seconds_of_rounds.size() - seconds_of_rounds.size() / 10);
  const double all = std::accumulate(seconds_of_rounds.begin(), seconds_of_rounds.end(), 0.0);
  return all / static_cast<double>(seconds_of_rounds.size());
}

double quantile(std::vector<double> values, double share) {
  const auto at =
      values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(std::ssize(values)));
  std::ranges::nth_element(values, at);
  return *at;
}

Contenders::Contenders(const group::HostList& hosts, Rank self) {
  std::vector<std::int32_t> taken;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    if (hosts[rank] < 0) continue;
    const auto host =
        static_cast<std::size_t>(std::ranges::find(taken, hosts[rank]) - taken.begin());
    if (host == kHostsMax) continue;
    if (host == taken.size()) {
      taken.push_back(hosts[rank]);
      ranks.emplace_back();
    }
    if (ranks[host].size() < kRanksMax) ranks[host].push_back(static_cast<int>(rank));
  }
  for (std::size_t host = 0; host < ranks.size(); ++host) {
    const auto own = std::ranges::find(ranks[host], self);
    if (own == ranks[host].end()) continue;
    const auto index = static_cast<std::size_t>(own - ranks[host].begin());
    std::ranges::copy_if(ranks[host], std::back_inserter(near),
                         [&](Rank rank) { return rank != self; });
    for (std::size_t other = 0; other < ranks.size(); ++other) {
      if (other != host) others.insert(others.end(), ranks[other].begin(), ranks[other].end());
    }
    // The first host is paired with the second, and so on. A rank without a partner there exchanges
    // with the first rank of its host, as it would wait for other ranks in a collective. If the
    // host has no opposite, it exchanges with a neighbour. So no rank leaves its core to the others
    // meanwhile.
    const std::size_t opposite = host ^ 1;
    const std::size_t paired = opposite < ranks.size() ? ranks[opposite].size() : 0;
    const std::size_t neighbour = index ^ 1;
    if (index < paired) {
      partner = {ranks[opposite][index]};
      if (index > 0) continue;
      const std::size_t waiting = std::min(paired, ranks[host].size());
      partner.insert(partner.end(), ranks[host].begin() + static_cast<std::ptrdiff_t>(waiting),
                     ranks[host].end());
    } else if (paired > 0) {
      partner = {ranks[host].front()};
    } else if (neighbour < ranks[host].size()) {
      partner = {ranks[host][neighbour]};
    }
  }
}

std::string ContentionProbe::describe(const RankVector<std::string>& names) const {
  std::string text;
  for (const auto& of_host : who_.ranks) {
    text +=
        fmt::format("{}{} of {}", text.empty() ? "" : ", ", of_host.size(), names[of_host.front()]);
  }
  return text;
}

std::size_t ContentionProbe::pairs() const {
  return who_.ranks.size() < 2 ? 1 : std::min(who_.ranks[0].size(), who_.ranks[1].size());
}

// The bytes that all pairs of a host send in one direction.
double ContentionProbe::bytes_of(const Load& load) const {
  return static_cast<double>(pairs()) * load.rounds * load.messages *
         static_cast<double>(load.bytes);
}

// On a fast link, measures as many bytes as collectives send, as cores may delay them more than the
// link. If some bytes may pass at once, also measures a few, which the link does not delay.
ContentionProbe::Rounds ContentionProbe::rounds_for(const schedule::LinkCost& cost,
                                                    double small_round_seconds) const {
  const auto messages = static_cast<double>(2 * who_.others.size() + 1);
  const double rounds = seconds(kContentionTime) / (2 * small_round_seconds * messages);
  const double turns = seconds(kTurnsTime) / small_round_seconds;
  Rounds result{.turns = static_cast<std::int32_t>(std::clamp<double>(turns, kTurnsMin, kTurnsMax)),
                .of_byte = static_cast<std::int32_t>(std::clamp<double>(rounds, 1, kRoundsMax))};
  const Load many = {kManyRounds, kManyMessages, transport::kEagerBytes};
  if (bytes_of(many) * cost.seconds_per_byte < seconds(kLoadTime)) result.many = many;
  // Less than the burst, as the messages by which ranks have met use it, too.
  const double each = 0.75 * cost.burst_bytes / (static_cast<double>(pairs()) * kFewMessages);
  if (each >= 1) {
    result.few = {1, kFewMessages,
                  static_cast<std::int32_t>(std::min<double>(each, transport::kEagerBytes))};
  }
  return result;
}

void ContentionProbe::tell(Rounds& rounds) {
  const Rank first = who_.ranks.front().front();
  const std::span<Rounds> told(&rounds, 1);
  if (world_.rank() != first) {
    world_.recv(std::as_writable_bytes(told), {.from = first, .tag = kProbeTag}).wait();
    const auto is_within = [](std::int32_t value, std::int32_t least, std::size_t most) {
      return value >= least && std::cmp_less_equal(value, most);
    };
    const auto is_usual = [&](const Load& load) {
      return is_within(load.rounds, 0, kRoundsMax) && is_within(load.messages, 1, kManyMessages) &&
             is_within(load.bytes, 1, transport::kEagerBytes);
    };
    if (is_within(rounds.turns, kTurnsMin, kTurnsMax) && is_within(rounds.of_byte, 0, kRoundsMax) &&
        is_usual(rounds.many) && is_usual(rounds.few)) {
      return;
    }
    throw ProtocolError(status_of(
        StatusCode::protocol,
        "rank {} asks for {} rounds of messages to measure links, and for {} of {} messages of {} "
        "bytes, which is more than any rank asks for",
        first.value(), rounds.of_byte, rounds.many.rounds, rounds.many.messages,
        rounds.many.bytes));
  }
  for (const auto& of_host : who_.ranks) {
    for (const Rank rank : of_host) {
      if (rank == first) continue;
      world_.send(std::as_bytes(told), {.to = rank, .tag = kProbeTag}).wait();
    }
  }
}

void ContentionProbe::exchange(const std::vector<Rank>& peers, std::size_t bytes) {
  buffer_.resize(std::max(buffer_.size(), 2 * peers.size() * bytes));
  std::vector<Work> works;
  std::span<std::uint8_t> left = buffer_;
  const auto next = [&] { return std::exchange(left, left.subspan(bytes)).first(bytes); };
  for (const Rank peer : peers) {
    works.push_back(world_.recv(next(), {.from = peer, .tag = kProbeTag}));
  }
  for (const Rank peer : peers) {
    works.push_back(
        world_.send(std::span<const std::uint8_t>(next()), {.to = peer, .tag = kProbeTag}));
  }
  for (Work& work : works) work.wait();
}

// Pairs that do nothing else fall into step: one rank finds the other's message already there, and
// sends the next one without waiting. So between two rounds the ranks of a host exchange a message,
// as in collectives, or else all ranks do; the time of that alone is subtracted. A rank that is
// ahead by the time of one message waits twice that time in one round and not at all in the next,
// so two rounds are timed together.
void ContentionProbe::small_messages(const Rounds& rounds, Times& times) {
  std::vector<double> pair;
  std::vector<double> all;
  const auto mean = [&](const auto& round) {
    std::vector<double> seconds_of_rounds;
    for (int i = 0; i < rounds.of_byte; ++i) {
      const TimePoint begin = Clock::now();
      round();
      round();
      seconds_of_rounds.push_back(seconds(Clock::now() - begin) / 2);
    }
    return mean_of_faster(std::move(seconds_of_rounds));
  };
  const bool have_neighbours = std::ranges::all_of(
      who_.ranks, [](const std::vector<Rank>& of_host) { return of_host.size() > 1; });
  const std::vector<Rank>& between = have_neighbours ? who_.near : who_.others;
  for (int turn = 0; turn < 2 * rounds.turns; ++turn) {
    all.push_back(mean([&] { exchange(who_.others, 1); }));
    const double alone = have_neighbours ? mean([&] { exchange(between, 1); }) : all.back();
    const double both = mean([&] {
      exchange(between, 1);
      exchange(who_.partner, 1);
    });
    pair.push_back(both - alone);
  }
  times.pair_seconds = quantile(std::move(pair), 0.5);
  times.all_seconds = quantile(std::move(all), 0.5);
}

// The time of `body`, which all ranks run at once, from the first rank's begin to the last one's
// end: a rank that runs alone has the link or the core for itself. Two exchanges with other hosts
// before and after it let ranks of one host hear of each other.
template <class Body>
double ContentionProbe::time_of(const Body& body, int turns, const Times& times) {
  const auto meet = [this] {
    for (int i = 0; i < 2; ++i) exchange(who_.others, 1);
  };
  std::vector<double> seconds_of_turns;
  for (int turn = 0; turn < turns; ++turn) {
    std::this_thread::sleep_for(kRest);
    for (int i = 0; i < kWakingRounds; ++i) exchange(who_.others, 1);
    const TimePoint begin = Clock::now();
    meet();
    body();
    meet();
    seconds_of_turns.push_back(seconds(Clock::now() - begin) - 4 * times.all_seconds);
  }
  // A low quantile, as other work on the cores or bytes on the link make a turn longer.
  return std::max(0.0, quantile(std::move(seconds_of_turns), 0.125));
}

double ContentionProbe::load_seconds(const Load& load, int turns, const Times& times) {
  std::vector<Rank> loaded;
  for (int i = 0; i < load.messages; ++i) {
    loaded.insert(loaded.end(), who_.partner.begin(), who_.partner.end());
  }
  const double all_rounds = time_of(
      [&] {
        for (int i = 0; i < load.rounds; ++i) {
          exchange(loaded, static_cast<std::size_t>(load.bytes));
        }
      },
      turns, times);
  return std::max(0.0, all_rounds - load.rounds * times.pair_seconds);
}

double ContentionProbe::reduce_seconds_per_byte(int turns, const Times& times) {
  std::vector<float> a(kReducedBytes / sizeof(float));
  std::vector<float> b(a.size());
  const std::array<kernel::Input, 2> inputs = {kernel::Input{a.data(), DType::f32},
                                               kernel::Input{b.data(), DType::f32}};
  void* output = a.data();
  const double reductions = time_of(
      [&] {
        for (int i = 0; i < kReductions; ++i) {
          kernel::reduce({.count = a.size(), .inputs = inputs, .outputs = {&output, 1}}).or_throw();
        }
      },
      turns, times);
  return reductions / (kReductions * 2 * kReducedBytes);
}

ContentionProbe::Times ContentionProbe::run(Rounds rounds) {
  tell(rounds);
  if (rounds.of_byte == 0) return {};
  Times times;
  small_messages(rounds, times);
  if (rounds.few.rounds > 0) {
    times.burst_seconds_per_byte =
        load_seconds(rounds.few, rounds.turns, times) / bytes_of(rounds.few);
  }
  if (rounds.many.rounds > 0) {
    times.many_bytes = bytes_of(rounds.many);
    times.many_seconds = load_seconds(rounds.many, rounds.turns, times);
  }
  times.reduce_seconds_per_byte =
      reduce_seconds_per_byte(std::min(rounds.turns, kReductionTurns), times);
  std::size_t all = 0;
  std::size_t least = kRanksMax;
  for (const auto& of_host : who_.ranks) {
    all += of_host.size();
    least = std::min(least, of_host.size());
  }
  times.peers_max = static_cast<int>(all - least);
  return times;
}

// Solves pair = 2 * message + latency and all = pair + (peers - 1) * further.
void set_shared_costs(const ContentionProbe::Times& times, schedule::LinkCost& cost) {
  const double message_max = (times.pair_seconds - kLeastLatencySeconds) / 2;
  if (times.peers_max > 1) {
    cost.further_message_seconds = std::max(
        kLeastMessageSeconds, (times.all_seconds - times.pair_seconds) / (times.peers_max - 1));
    cost.message_seconds = cost.further_message_seconds;
  }
  cost.message_seconds =
      std::max(kLeastMessageSeconds, std::min(cost.message_seconds, message_max));
  cost.latency_seconds =
      std::max(kLeastLatencySeconds, times.pair_seconds - 2 * cost.message_seconds);
  cost.reduce_seconds_per_byte = std::max(kLeastSecondsPerByte, times.reduce_seconds_per_byte);
  // The rate of all pairs counts: one pair alone may be too slow to fill the link, or have all
  // cores for itself.
  const bool is_fast = times.many_bytes > 0;
  const double all = is_fast ? times.many_seconds / times.many_bytes : cost.seconds_per_byte;
  cost.burst_seconds_per_byte = times.burst_seconds_per_byte;
  // There is no burst if further bytes take no longer than the first ones.
  if (cost.burst_seconds_per_byte > kAtOnce * all) {
    cost.burst_bytes = cost.burst_seconds_per_byte = 0;
  }
  if (!is_fast) return;
  cost.seconds_per_byte =
      std::max(kLeastSecondsPerByte, times.many_seconds / (times.many_bytes - cost.burst_bytes));
}

}  // namespace stretto::communicator
