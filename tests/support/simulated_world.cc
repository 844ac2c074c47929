// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/support/simulated_world.h"

#include <algorithm>
#include <array>

namespace stretto::transport::sim {
namespace {

class SimLink : public Link {
 public:
  SimLink(std::shared_ptr<Network> network, Rank self, Rank peer)
      : network_(std::move(network)),
        outgoing_(network_->wire(self, peer)),
        incoming_(network_->wire(peer, self)) {}
  ~SimLink() override {
    outgoing_.end(false);
    incoming_.close_reader();
  }

  std::string_view name() const override { return "sim"; }
  Result<std::size_t> write(std::span<const ConstByteSpan> pieces) override {
    if (outgoing_.reader_gone()) return status_of(StatusCode::peer_lost, "broken pipe");
    return outgoing_.write(pieces);
  }
  Result<std::size_t> read(ByteSpan into) override {
    if (incoming_.ended()) return status_of(StatusCode::peer_lost, "the connection was closed");
    return incoming_.read(into);
  }
  bool readable() const override { return incoming_.readable(); }

 private:
  std::shared_ptr<Network> network_;
  Wire& outgoing_;
  Wire& incoming_;
};

class SimEndpoint final : public Endpoint {
 public:
  static Result<std::unique_ptr<Endpoint>> create(std::shared_ptr<Network> network, Parts parts) {
    std::unique_ptr<SimEndpoint> endpoint(new SimEndpoint(std::move(network), std::move(parts)));
    STRETTO_RETURN_IF_ERROR(endpoint->open_poll());
    return {std::move(endpoint)};
  }
  bool progress() override { return network_->after_progress(rank(), Endpoint::progress()); }

 private:
  SimEndpoint(std::shared_ptr<Network> network, Parts parts)
      : Endpoint(std::move(parts)), network_(std::move(network)) {}

  std::shared_ptr<Network> network_;
};

}  // namespace

Network::Network(const WorldOptions& options) : ranks_(options.ranks), agenda_(options.ranks) {
  constexpr std::array<std::size_t, 4> kRooms = {300, 5000, 64 * 1024, 1024 * 1024};
  constexpr std::array<std::size_t, 4> kSteps = {100, 3000, 20 * 1024, 256 * 1024};
  constexpr std::array<Time, 4> kDelays = {Time(1), Time(1000), Time(50'000), Time(2'000'000)};
  Random random(options.seed);
  const std::size_t room = kRooms[random.below(kRooms.size())];
  const std::size_t step = kSteps[random.below(kSteps.size())];
  const Time delay = kDelays[random.below(kDelays.size())];
  for (int from = 0; from < ranks_; ++from) {
    for (int to = 0; to < ranks_; ++to) {
      wires_.push_back(std::make_unique<Wire>(&agenda_, Wire::Ends{from, to},
                                              Wire::Options{.seed = random.next(),
                                                            .room_bytes = room,
                                                            .step_bytes_max = step,
                                                            .delay_max = delay}));
    }
  }
}

void Network::cut(Rank a, Rank b) {
  for (Wire* cut : {&wire(a, b), &wire(b, a)}) {
    cut->end(true);
    cut->close_reader();
  }
}

std::uint64_t Network::frames() const {
  std::uint64_t frames = 0;
  for (const auto& wire : wires_) frames += wire->frames();
  return frames;
}

void Network::kill(Rank rank) {
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer != rank.value()) cut(rank, peer);
  }
}

Result<World> make_world(const WorldOptions& options) {
  World world{.network = std::make_shared<Network>(options)};
  for (int r = 0; r < options.ranks; ++r) {
    // Time stands still while an endpoint ends: nothing could be waited for.
    Endpoint::Parts parts{.rank = r, .farewell_time = Duration::zero()};
    for (int peer = 0; peer < options.ranks; ++peer) {
      parts.links.push_back(
          peer == r ? nullptr : std::make_unique<SimLink>(world.network, Rank(r), Rank(peer)));
    }
    STRETTO_ASSIGN_OR_RETURN(auto endpoint, SimEndpoint::create(world.network, std::move(parts)));
    world.endpoints.push_back(std::move(endpoint));
  }
  return world;
}

}  // namespace stretto::transport::sim
