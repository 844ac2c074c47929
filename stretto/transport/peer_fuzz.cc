// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Feeds this rank with bytes of a peer: arbitrary ones, and frames that are valid by themselves but
// come at any time, while requests are posted and groups are forgotten. A request must end once,
// nothing may be written to its bytes afterwards, and all requests end when the peer is lost.
// Another plane may move the messages: then farewells and agreements wait for it.
// Sources: peer.cc matcher.cc frame_stream.cc transport.cc
// Sources: frame.cc frame_messages.cc

#include <algorithm>
#include <cstdlib>
#include <list>

#include "stretto/transport/peer.h"
#include "tests/support/fake_link.h"
#include "tests/support/held_plane.h"

using namespace stretto::transport;

namespace {

// Reads the input as a list of decisions, which are zero when it has been used up.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  bool empty() const { return size_ == 0; }
  std::uint8_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  std::uint32_t below(std::uint32_t bound) { return byte() % bound; }
  // Returns one of the sizes around which the protocol changes.
  std::size_t message_bytes() {
    constexpr std::size_t kSizes[] = {
        0, 1, 55, 300, 5000, kEagerBytes, kEagerBytes + 1, 100000, kPieceBytes + 1};
    const std::size_t bytes = kSizes[below(9)];
    if (bytes <= kPieceBytes) return bytes;
    return long_left_ > 0 ? (--long_left_, bytes) : 0;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  int long_left_ = 16;  // Limits long messages, which take time and memory.
};

class Harness : private TransportListener {
 public:
  Harness(Input input, bool has_plane) : input_(input), has_plane_(has_plane) {
    auto link = std::make_unique<FakeLink>();
    link_ = link.get();
    peer_ = std::make_unique<Peer>(Peer::Ranks{.self = 0, .peer = 1, .count = 3}, std::move(link),
                                   &listener_, has_plane_ ? &plane_ : nullptr);
  }

  void run() {
    while (!input_.empty()) {
      act();
      take_completions();
    }
    link_->ended = true;
    link_->read_max_bytes = static_cast<std::size_t>(-1);
    plane_.read = plane_.arrived;
    for (int turn = 0; turn < 10000 && peer_->status().ok(); ++turn) peer_->progress();
    take_completions();
    // The end of the peer is noticed, however many unexpected bytes have come.
    if (peer_->status().ok() || !open_.empty() || told_lost_ != 1) std::abort();
    if (peer_->half_forgotten() != 0 || unexpected_bytes() > kUnexpectedBytesMax) std::abort();
  }

 private:
  std::uint64_t unexpected_bytes() const {
    if (has_plane_) return 0;
    return static_cast<const FrameMessages&>(peer_->plane()).matcher().unexpected_bytes();
  }
  struct Message {
    Request request;
    std::vector<std::byte> bytes;
  };

  void act() {
    switch (input_.below(has_plane_ ? 11 : 10)) {
      case 0:
        return feed_noise();
      case 1:
      case 2:
      case 3:
        return feed_frame();
      case 4:
        return post(true);
      case 5:
        return post(false);
      case 6:
        return peer_->forget(input_.below(4), {stretto::StatusCode::aborted, "enough"});
      case 7:
        return peer_->inquire(input_.below(4), 0, {});
      case 8:
        return peer_->abandon(input_.below(4), {stretto::StatusCode::aborted, "not now"});
      case 10:
        return move_plane();
      default:
        link_->read_max_bytes = 1 + input_.byte() * 257u;
        link_->room_bytes = input_.byte() * 1000u;
        peer_->progress();
    }
  }

  void move_plane() {
    plane_.arrived += input_.below(4);
    plane_.read = std::min(plane_.arrived, plane_.read + input_.below(4));
    plane_.output = input_.below(2) == 0;
    now_ += std::chrono::seconds(input_.below(8));
    peer_->check_contact(now_);
  }

  void feed_noise() {
    std::vector<std::byte> noise(input_.below(64));
    for (std::byte& byte : noise) byte = static_cast<std::byte>(input_.byte());
    link_->feed(noise);
  }

  void feed_frame() {
    const Frame frame{.kind = static_cast<FrameKind>(1 + input_.below(kFrameKindCount)),
                      .key = key(),
                      .message_bytes = input_.message_bytes(),
                      .operation = {.count = input_.below(8) == 0 ? 1u : 0u}};
    link_->feed(encode(frame));
    link_->feed(std::vector<std::byte>(frame.payload_bytes(), std::byte{0x77}));
  }

  MessageKey key() { return {.group = input_.below(4), .message = input_.below(2)}; }

  void post(bool sends) {
    Message& message = open_.emplace_back();
    message.bytes.resize(input_.message_bytes());
    message.request.key = key();
    message.request.completions = &completions_;
    message.request.cookie = next_cookie_++;
    if (sends) {
      message.request.outgoing = message.bytes;
      peer_->send(message.request);
    } else {
      message.request.incoming = message.bytes;
      peer_->recv(message.request);
    }
  }

  void take_completions() {
    for (; !completions_.empty(); completions_.pop()) {
      const std::uint64_t cookie = completions_.front().cookie;
      const std::size_t before = open_.size();
      // Frees the bytes, so that the address sanitizer finds later accesses.
      open_.remove_if([&](const Message& message) { return message.request.cookie == cookie; });
      if (open_.size() + 1 != before) std::abort();
      if (!input_.empty() && input_.below(4) == 0) {
        post(input_.below(2) == 0);
        peer_->flush();
      }
    }
  }
  void group_left(std::uint64_t, stretto::Rank, Farewell) override {
    // Peer::lose() reports the farewells that still wait. Nothing is forgotten then.
    if (peer_->status().ok() && input_.below(4) == 0) {
      peer_->forget(input_.below(4), {stretto::StatusCode::aborted, "enough"});
    }
  }
  void peer_lost(stretto::Rank, const stretto::Status&) override { ++told_lost_; }
  void unexpected_message(stretto::Rank, const MessageKey& unexpected,
                          const stretto::OperationDescriptor&) override {
    if (input_.below(8) == 0)
      peer_->forget(unexpected.group, {stretto::StatusCode::aborted, "enough"});
  }
  void group_aborted(std::uint64_t group, stretto::Rank, const stretto::Status& reason,
                     GroupStage stage) override {
    if (stage > GroupStage::aborted) std::abort();
    if (input_.below(2) == 0) peer_->forget(group, reason);
  }
  stretto::Status agreement_arrived(stretto::Rank, const MessageKey& said,
                                    stretto::ConstByteSpan payload) override {
    if (payload.size() > kAgreementBytes) std::abort();
    if (input_.below(2) == 0) peer_->send_agreement(said, payload);
    if (input_.below(16) != 0) return {};
    return {stretto::StatusCode::protocol, "nonsense"};
  }
  std::string describe_state(stretto::Rank, std::uint64_t, std::uint32_t,
                             const stretto::OperationDescriptor&) override {
    return std::string(input_.byte() * 7u, 'x');
  }
  void state_reported(stretto::Rank, std::uint64_t, std::uint32_t,
                      const std::string& text) override {
    for (const char c : text) {
      if (c < ' ' || c > '~') std::abort();
    }
  }

  Input input_;
  bool has_plane_;
  HeldPlane plane_;
  stretto::TimePoint now_ = stretto::Clock::now();
  TransportListener* listener_ = this;
  FakeLink* link_ = nullptr;
  std::unique_ptr<Peer> peer_;
  std::list<Message> open_;
  int told_lost_ = 0;
  CompletionQueue completions_;
  std::uint64_t next_cookie_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Few other decisions need the last byte. It says whether another plane moves the messages.
  Harness(Input(data, size), size > 0 && data[size - 1] % 2 == 0).run();
  return 0;
}
