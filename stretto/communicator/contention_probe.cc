// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/contention_probe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

namespace stretto::communicator {
namespace {

constexpr std::size_t kHostsMax = 4;
constexpr std::size_t kRanksMax = 4;  // Of a host.
constexpr double kLeastLatencySeconds = 1e-7;

}  // namespace

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
    // The first host with the second, and so on. Who has nobody there, with a neighbour: no rank of
    // a host leaves the cores to the others while they run a collective.
    const std::size_t opposite = host ^ 1;
    const std::size_t paired = opposite < ranks_.size() ? ranks_[opposite].size() : 0;
    const std::size_t neighbour = paired + ((index - paired) ^ 1);
    if (index < paired) {
      partner_ = {ranks_[opposite][index]};
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
  std::ranges::sort(seconds_of_rounds);
  seconds_of_rounds.resize(seconds_of_rounds.size() - seconds_of_rounds.size() / 10);
  const double all = std::accumulate(seconds_of_rounds.begin(), seconds_of_rounds.end(), 0.0);
  return all / static_cast<double>(seconds_of_rounds.size());
}

ContentionProbe::Times ContentionProbe::run(int rounds) {
  tell(rounds);
  if (rounds == 0) return {};
  Times times;
  times.pair_seconds = mean_round(partner_, rounds);
  times.all_seconds = mean_round(others_, rounds);
  std::size_t all = 0;
  std::size_t least = kRanksMax;
  for (const auto& of_host : ranks_) {
    all += of_host.size();
    least = std::min(least, of_host.size());
  }
  times.peers_max = static_cast<int>(all - least);
  return times;
}

// pair = 2 message + latency, all = (peers + 1) message + latency. Where ranks wait for each
// other's cores, more messages may take so much longer that nothing is left for the way: then what
// is nearest to both.
void set_message_costs(const ContentionProbe::Times& times, schedule::LinkCost& cost) {
  if (times.peers_max > 1) {
    cost.message_seconds =
        std::max(20e-9, (times.all_seconds - times.pair_seconds) / (times.peers_max - 1));
  }
  cost.latency_seconds = times.pair_seconds - 2 * cost.message_seconds;
  if (cost.latency_seconds >= kLeastLatencySeconds) return;
  cost.latency_seconds = kLeastLatencySeconds;
  cost.message_seconds =
      std::sqrt(times.pair_seconds / 2 * times.all_seconds / (times.peers_max + 1));
}

}  // namespace stretto::communicator
