// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/contention_probe.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "stretto/transport/transport.h"

namespace stretto::communicator {
namespace {

constexpr std::size_t kHostsMax = 4;
constexpr std::size_t kRanksMax = 4;  // Of a host.
constexpr double kLeastLatencySeconds = 1e-7;
constexpr double kLeastMessageSeconds = 20e-9;
constexpr std::size_t kTurns = 5;
constexpr std::chrono::milliseconds kContentionTime(20);
constexpr std::chrono::milliseconds kLoadTime(4);  // Of a round: longer ones wait for the link.
constexpr std::int32_t kBurstMessageBytes = 4096;  // Takes microseconds more than one byte.
constexpr std::int32_t kLoadMessages = 16;
constexpr std::int32_t kBurstRoundsMax = 8;
constexpr std::int32_t kLoadRounds = 3;
constexpr int kWakingRounds = 3;

double median(std::array<double, kTurns> values) {
  std::ranges::nth_element(values, values.begin() + kTurns / 2);
  return values[kTurns / 2];
}

}  // namespace

double mean_of_faster(std::vector<double> seconds_of_rounds) {
  std::ranges::sort(seconds_of_rounds);
  seconds_of_rounds.resize(seconds_of_rounds.size() - seconds_of_rounds.size() / 10);
  const double all = std::accumulate(seconds_of_rounds.begin(), seconds_of_rounds.end(), 0.0);
  return all / static_cast<double>(seconds_of_rounds.size());
}

ContentionProbe::ContentionProbe(Communicator& world, const group::HostList& hosts)
    : world_(world) {
  std::vector<std::int32_t> taken;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto host =
        static_cast<std::size_t>(std::ranges::find(taken, hosts[rank]) - taken.begin());
    if (host == kHostsMax) continue;
    if (host == taken.size()) {
      taken.push_back(hosts[rank]);
      ranks_.emplace_back();
    }
    if (ranks_[host].size() < kRanksMax) ranks_[host].push_back(static_cast<int>(rank));
  }
  for (std::size_t host = 0; host < ranks_.size(); ++host) {
    const auto own = std::ranges::find(ranks_[host], world.rank());
    if (own == ranks_[host].end()) continue;
    const auto index = static_cast<std::size_t>(own - ranks_[host].begin());
    for (std::size_t other = 0; other < ranks_.size(); ++other) {
      if (other != host) others_.insert(others_.end(), ranks_[other].begin(), ranks_[other].end());
    }
    // The first host with the second, and so on. Who has nobody there waits for the first rank of
    // its host, as for what others bring in a collective, or, if no rank has, has a neighbour: no
    // rank of a host leaves the cores to the others meanwhile.
    const std::size_t opposite = host ^ 1;
    const std::size_t paired = opposite < ranks_.size() ? ranks_[opposite].size() : 0;
    const std::size_t neighbour = index ^ 1;
    if (index < paired) {
      partner_ = {ranks_[opposite][index]};
      if (index > 0) continue;
      const std::size_t waiting = std::min(paired, ranks_[host].size());
      partner_.insert(partner_.end(), ranks_[host].begin() + static_cast<std::ptrdiff_t>(waiting),
                      ranks_[host].end());
    } else if (paired > 0) {
      partner_ = {ranks_[host].front()};
    } else if (neighbour < ranks_[host].size()) {
      partner_ = {ranks_[host][neighbour]};
    }
  }
}

std::string ContentionProbe::describe() const {
  std::string text;
  for (const auto& of_host : ranks_) {
    text += fmt::format("{}{}", text.empty() ? "" : "+", of_host.size());
  }
  return text;
}

std::size_t ContentionProbe::pairs() const {
  return ranks_.size() < 2 ? 1 : std::min(ranks_[0].size(), ranks_[1].size());
}

// Where bytes pass at once, few of them, which the link does not delay; where it is fast, as many
// as collectives send, which the cores may delay more.
ContentionProbe::Rounds ContentionProbe::rounds_for(const schedule::LinkCost& cost,
                                                    double small_round_seconds) const {
  const double rounds = seconds(kContentionTime) / small_round_seconds;
  Rounds result{.of_byte = static_cast<std::int32_t>(std::clamp<double>(rounds, 5, kRoundsMax))};
  const auto pair_count = static_cast<double>(pairs());
  if (cost.burst_bytes > 0) {
    // Half of them, as a rank may be ahead of others.
    const double fit = cost.burst_bytes / 2 / (pair_count * kBurstMessageBytes);
    result.of_load = std::min(kBurstRoundsMax, static_cast<std::int32_t>(fit));
    result.load_bytes = kBurstMessageBytes;
    return result;
  }
  result.load_bytes = transport::kEagerBytes;
  result.load_messages = kLoadMessages;
  const double load_bytes =
      pair_count * kLoadMessages * static_cast<double>(transport::kEagerBytes);
  result.of_load = load_bytes * cost.seconds_per_byte < seconds(kLoadTime) ? kLoadRounds : 0;
  return result;
}

void ContentionProbe::tell(Rounds& rounds) {
  const Rank first = ranks_.front().front();
  const std::span<Rounds> told(&rounds, 1);
  if (world_.rank() != first) {
    world_.recv(std::as_writable_bytes(told), {.from = first, .tag = kProbeTag}).wait();
    const auto is_within = [](std::int32_t value, std::int32_t least, std::size_t most) {
      return value >= least && std::cmp_less_equal(value, most);
    };
    if (is_within(rounds.of_byte, 0, kRoundsMax) && is_within(rounds.of_load, 0, kRoundsMax) &&
        is_within(rounds.load_messages, 1, kLoadMessages) &&
        is_within(rounds.load_bytes, 1, transport::kEagerBytes)) {
      return;
    }
    throw ProtocolError(status_of(StatusCode::protocol,
                                  "rank {} asks for {} and {} rounds of {} messages of {} bytes to "
                                  "measure links, which is more than any rank asks for",
                                  first.value(), rounds.of_byte, rounds.of_load,
                                  rounds.load_messages, rounds.load_bytes));
  }
  for (const auto& of_host : ranks_) {
    for (const Rank rank : of_host) {
      if (rank == first) continue;
      world_.send(std::as_bytes(told), {.to = rank, .tag = kProbeTag}).wait();
    }
  }
}

double ContentionProbe::mean_round(const std::vector<Rank>& peers, int rounds,
                                   std::size_t message_bytes) {
  std::vector<double> seconds_of_rounds(static_cast<std::size_t>(rounds));
  std::vector<std::uint8_t> bytes(2 * peers.size() * message_bytes);
  for (double& seconds_of_round : seconds_of_rounds) {
    const TimePoint begin = Clock::now();
    std::vector<Work> works;
    for (std::size_t i = 0; i < peers.size(); ++i) {
      const auto message = std::span(bytes).subspan(i * message_bytes, message_bytes);
      works.push_back(world_.recv(message, {.from = peers[i], .tag = kProbeTag}));
    }
    for (std::size_t i = 0; i < peers.size(); ++i) {
      const auto message = std::span<const std::uint8_t>(bytes).subspan(
          (peers.size() + i) * message_bytes, message_bytes);
      works.push_back(world_.send(message, {.to = peers[i], .tag = kProbeTag}));
    }
    for (Work& work : works) work.wait();
    seconds_of_round = seconds(Clock::now() - begin);
  }
  return mean_of_faster(std::move(seconds_of_rounds));
}

ContentionProbe::Times ContentionProbe::run(Rounds rounds) {
  tell(rounds);
  if (rounds.of_byte == 0) return {};
  Times times;
  std::vector<Rank> loaded;
  for (int i = 0; i < rounds.load_messages; ++i) {
    loaded.insert(loaded.end(), partner_.begin(), partner_.end());
  }
  // In turns: what else runs on the cores for a while makes one of them longer, or shorter, as who
  // has waited for it has found all messages there.
  std::array<double, kTurns> pair{};
  std::array<double, kTurns> all_at_once{};
  std::array<double, kTurns> load{};
  for (std::size_t turn = 0; turn < kTurns; ++turn) {
    pair[turn] = mean_round(partner_, rounds.of_byte, 1);
    all_at_once[turn] = mean_round(others_, rounds.of_byte, 1);
    if (rounds.of_load == 0) continue;
    std::this_thread::sleep_for(kRest);
    (void)mean_round(partner_, kWakingRounds, 1);
    load[turn] = mean_round(loaded, rounds.of_load, static_cast<std::size_t>(rounds.load_bytes));
  }
  const double load_bytes = static_cast<double>(pairs()) * rounds.load_messages * rounds.load_bytes;
  times.seconds_per_byte = std::max(0.0, median(load) - median(pair)) / load_bytes;
  times.pair_seconds = median(pair);
  times.all_seconds = median(all_at_once);
  std::size_t all = 0;
  std::size_t least = kRanksMax;
  for (const auto& of_host : ranks_) {
    all += of_host.size();
    least = std::min(least, of_host.size());
  }
  times.peers_max = static_cast<int>(all - least);
  return times;
}

// pair = 2 message + latency, all = pair + (peers - 1) further.
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
  if (cost.burst_bytes > 0) {
    cost.burst_seconds_per_byte = std::min(times.seconds_per_byte, cost.seconds_per_byte);
  } else if (times.seconds_per_byte > 0) {
    // One pair may lack the processors to fill the link, or have them all for itself.
    cost.seconds_per_byte = times.seconds_per_byte;
  }
}

}  // namespace stretto::communicator
