// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/contention_probe.h"

#include <algorithm>
#include <array>
#include <numeric>

#include <fmt/format.h>

namespace stretto::communicator {
namespace {

constexpr std::size_t kHostsMax = 4;
constexpr std::size_t kRanksMax = 4;  // Of a host.
constexpr double kLeastLatencySeconds = 1e-7;
constexpr double kLeastMessageSeconds = 20e-9;
constexpr std::size_t kTurns = 5;

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

void ContentionProbe::tell(int& rounds) {
  const Rank first = ranks_.front().front();
  std::array<std::int32_t, 1> told = {rounds};
  if (world_.rank() != first) {
    world_.recv(std::span(told), {.from = first, .tag = kProbeTag}).wait();
    rounds = told[0];
    if (rounds >= 0 && rounds <= kRoundsMax) return;
    throw ProtocolError(status_of(StatusCode::protocol,
                                  "rank {} asks for {} rounds of messages that measure links, of "
                                  "which there are {} at most",
                                  first.value(), rounds, kRoundsMax));
  }
  for (const auto& of_host : ranks_) {
    for (const Rank rank : of_host) {
      if (rank == first) continue;
      world_.send(std::span<const std::int32_t>(told), {.to = rank, .tag = kProbeTag}).wait();
    }
  }
}

double ContentionProbe::mean_round(const std::vector<Rank>& peers, int rounds) {
  std::vector<double> seconds_of_rounds(static_cast<std::size_t>(rounds));
  std::vector<std::uint8_t> bytes(2 * peers.size());
  for (double& seconds_of_round : seconds_of_rounds) {
    const TimePoint begin = Clock::now();
    std::vector<Work> works;
    for (std::size_t i = 0; i < peers.size(); ++i) {
      works.push_back(
          world_.recv(std::span(bytes).subspan(i, 1), {.from = peers[i], .tag = kProbeTag}));
    }
    for (std::size_t i = 0; i < peers.size(); ++i) {
      const auto byte = std::span<const std::uint8_t>(bytes).subspan(peers.size() + i, 1);
      works.push_back(world_.send(byte, {.to = peers[i], .tag = kProbeTag}));
    }
    for (Work& work : works) work.wait();
    seconds_of_round = seconds(Clock::now() - begin);
  }
  return mean_of_faster(std::move(seconds_of_rounds));
}

ContentionProbe::Times ContentionProbe::run(int rounds) {
  tell(rounds);
  if (rounds == 0) return {};
  Times times;
  // In turns: what else runs on the cores for a while makes one of them longer, or shorter, as who
  // has waited for it has found all messages there.
  std::array<double, kTurns> pair{};
  std::array<double, kTurns> all_at_once{};
  for (std::size_t turn = 0; turn < kTurns; ++turn) {
    pair[turn] = mean_round(partner_, rounds);
    all_at_once[turn] = mean_round(others_, rounds);
  }
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
void set_message_costs(const ContentionProbe::Times& times, schedule::LinkCost& cost) {
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
}

}  // namespace stretto::communicator
