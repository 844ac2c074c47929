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

void Agenda::pass(Time time) {
  now_ += time;
  deliver();
}

bool Agenda::skip() {
  deliver();
  if (arrivals_.empty()) return false;
  now_ = arrivals_.top().first;
  deliver();
  return true;
}

void Agenda::deliver() {
  for (; !arrivals_.empty() && arrivals_.top().first <= now_; arrivals_.pop()) {
    wake(arrivals_.top().second);
  }
}

void Agenda::wake(int rank) {
  const auto index = static_cast<std::size_t>(rank);
  if (is_awake_[index]) return;
  is_awake_[index] = true;
  awake_.push_back(rank);
}

std::vector<int> Agenda::take_awake() {
  for (const int rank : awake_) is_awake_[static_cast<std::size_t>(rank)] = false;
  return std::exchange(awake_, {});
}

Wire::Wire(Agenda* agenda, const Ends& ends, const Options& options)
    : agenda_(agenda), ends_(ends), options_(options), random_(options.seed) {}

Time Wire::draw_arrival() {
  const Time delay(1 + random_.below(static_cast<std::uint64_t>(options_.delay_max.count()) + 1));
  last_arrival_ = std::max(last_arrival_, agenda_->now() + delay);
  agenda_->add(last_arrival_, ends_.reader);
  return last_arrival_;
}

std::size_t Wire::write(std::span<const ConstByteSpan> pieces) {
  if (held_bytes_ >= options_.room_bytes || end_) return 0;
  const std::size_t room = std::min(options_.room_bytes - held_bytes_, options_.step_bytes_max);
  std::size_t left = 1 + random_.below(room);
  Packet packet;
  std::size_t taken = 0;
  for (const ConstByteSpan piece : pieces) {
    const std::size_t step = std::min(piece.size(), left);
    admit(piece.first(step), packet.bytes);
    taken += step;
    left -= step;
    if (left == 0) break;
  }
  if (packet.bytes.empty()) return taken;
  packet.arrival = draw_arrival();
  held_bytes_ += packet.bytes.size();
  packets_.push_back(std::move(packet));
  return taken;
}

// Passes bytes on, but holds each header until it is whole, and drops lost frames.
void Wire::admit(ConstByteSpan bytes, std::vector<std::byte>& out) {
  while (!bytes.empty()) {
    if (header_bytes_ < header_.size()) {
      const std::size_t step = std::min(bytes.size(), header_.size() - header_bytes_);
      std::copy_n(bytes.begin(), step,
                  header_.begin() + static_cast<std::ptrdiff_t>(header_bytes_));
      header_bytes_ += step;
      bytes = bytes.subspan(step);
      if (header_bytes_ < header_.size()) return;
      begin_frame();
      if (!losing_) out.insert(out.end(), header_.begin(), header_.end());
    } else {
      const auto step =
          static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), payload_left_bytes_));
      if (!losing_) out.insert(out.end(), bytes.begin(), bytes.begin() + static_cast<long>(step));
      const bool strikes =
          flip_at_ && *flip_at_ <= payload_left_bytes_ && *flip_at_ > payload_left_bytes_ - step;
      if (strikes) {
        const auto back = static_cast<std::ptrdiff_t>(*flip_at_ - (payload_left_bytes_ - step));
        *(out.end() - back) ^= static_cast<std::byte>(1u << random_.below(8));
        flip_at_.reset();
      }
      payload_left_bytes_ -= step;
      bytes = bytes.subspan(step);
    }
    if (header_bytes_ == header_.size() && payload_left_bytes_ == 0) header_bytes_ = 0;
  }
}

void Wire::begin_frame() {
  losing_ = false;
  ++frames_;
  const Result<Frame> frame = decode(header_);
  payload_left_bytes_ = frame.ok() ? frame.value().payload_bytes() : 0;
  if (!frame.ok()) return;
  const FrameKind kind = frame.value().kind;
  const bool carries =
      kind == FrameKind::message || kind == FrameKind::data || kind == FrameKind::piece;
  if (armed_ == Fault::loss && (carries || kind == FrameKind::clear)) {
    losing_ = true;
    armed_ = Fault::none;
  }
  if (armed_ == Fault::flip && carries && payload_left_bytes_ > 0) {
    flip_at_ = 1 + random_.below(payload_left_bytes_);
    armed_ = Fault::none;
  }
}

std::size_t Wire::read(ByteSpan into) {
  if (!has_arrived() || into.empty()) return 0;
  if (held_bytes_ >= options_.room_bytes) agenda_->wake(ends_.writer);  // There is room again.
  const std::size_t wanted = 1 + random_.below(std::min(into.size(), options_.step_bytes_max));
  std::size_t given = 0;
  while (given < wanted && has_arrived()) {
    Packet& packet = packets_.front();
    const std::size_t step = std::min(wanted - given, packet.bytes.size() - packet.read);
    std::copy_n(packet.bytes.begin() + static_cast<std::ptrdiff_t>(packet.read), step,
                into.begin() + static_cast<std::ptrdiff_t>(given));
    packet.read += step;
    given += step;
    held_bytes_ -= step;
    if (packet.read == packet.bytes.size()) packets_.pop_front();
  }
  return given;
}

bool Wire::ended() const { return end_ && packets_.empty() && *end_ <= agenda_->now(); }

void Wire::close_reader() {
  reader_gone_ = true;
  agenda_->wake(ends_.writer);
}

void Wire::end(bool lossy) {
  if (end_) return;
  if (lossy && !packets_.empty()) {
    const std::size_t kept = random_.below(packets_.size() + 1);
    packets_.resize(kept);
    if (kept > 0) {
      Packet& last = packets_.back();
      last.bytes.resize(last.read + 1 + random_.below(last.bytes.size() - last.read));
    }
  }
  end_ = draw_arrival();
}

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
    // Time stands still while an endpoint ends, so it cannot wait for anything.
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
