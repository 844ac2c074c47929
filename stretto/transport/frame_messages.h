// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <vector>

#include "stretto/transport/data_plane.h"
#include "stretto/transport/frame.h"
#include "stretto/transport/frame_stream.h"
#include "stretto/transport/matcher.h"

namespace stretto::transport {

// The data plane of one peer whose messages are frames: of the link that also carries its control
// frames, or of a stream of their own (packets/stream_plane.h). In MPI's words: small messages go
// eagerly, as long as the receiver has given credit; others are announced (RTS) and go when the
// receiver has cleared them (CTS). Not thread safe.
class FrameMessages final : public PeerPlane {
 public:
  // `unexpected_count`: see Matcher.
  FrameMessages(Rank self, Rank peer, OutputQueue& output, std::size_t* unexpected_count = nullptr)
      : output_(&output), matcher_(self, peer, unexpected_count) {}

  void send(Request& request) override;
  void recv(Request& request) override;
  bool has_arrived(const MessageKey& key) const override { return matcher_.has_arrived(key); }
  std::optional<UnexpectedMessage> find_conflict(
      std::uint64_t group, std::uint32_t sequence,
      const OperationDescriptor& operation) const override {
    return matcher_.find_conflict(group, sequence, operation);
  }
  void cancel(std::uint64_t group, const Status& reason) override;
  void lose(const Status& reason) override;
  bool has_output() const override { return !output_->empty(); }

  // How much a receiver lets go of before it sends credit: so much that credit costs nothing, and
  // so little that a sender whose messages are taken as they come stays far below
  // kUnexpectedBytesMax.
  static constexpr std::uint64_t kCreditStepBytes = kUnexpectedBytesMax / 8;

  // Whether a frame of this kind is about a message.
  static bool carries(FrameKind kind);
  // The header of such a frame has come. Returns where its payload goes; bytes that do not fit
  // there are dropped. If `unwanted`, the whole frame is dropped. Fails if no correct peer sends
  // such a frame now.
  Result<ByteSpan> begin(const Frame& frame, bool unwanted);
  // All of a frame has come that was not `unwanted`. Returns whether its message is unexpected.
  Result<bool> end(const Frame& frame);
  // Whether pieces of a message that has begun are still to come.
  bool is_amid_pieces() const { return !begun_.empty(); }
  // Whether the payload that is coming goes into a receive of `group`.
  bool fills(std::uint64_t group) const {
    return target_request_ != nullptr && target_request_->key.group == group;
  }
  // Sends credit for the messages taken since the last credit if they cost `least_step_bytes` or
  // more.
  void return_credit(std::uint64_t least_step_bytes);
  // Whether return_credit() would send anything.
  bool owes_credit(std::uint64_t least_step_bytes) const {
    return taken_cost() - received_credit_ >= least_step_bytes;
  }
  const Matcher& matcher() const { return matcher_; }

 private:
  // A message whose bytes come in pieces.
  struct Begun {
    MessageKey key;
    Request* request = nullptr;  // Null: its bytes are dropped.
    std::uint64_t left_bytes = 0;
  };

  Status data_arrived(const Frame& frame);
  Result<ByteSpan> piece_arrived(const Frame& frame);
  void end_begun(const std::uint64_t* group, const Status& reason);
  std::uint64_t taken_cost() const { return received_cost_ - matcher_.unexpected_bytes(); }
  Status clear_arrived(const Frame& frame);
  Status credit_arrived(std::uint64_t total_bytes);
  Result<bool> announcement_arrived(const Frame& frame);
  void push_clear(const MessageKey& key, std::uint64_t bytes, const OperationDescriptor& operation);

  OutputQueue* output_;
  Matcher matcher_;
  // The cost (unexpected_cost_bytes) of all messages ever sent and received, and how much of it the
  // receiver has given back as credit.
  std::uint64_t sent_cost_ = 0;
  std::uint64_t sent_credit_ = 0;
  std::uint64_t received_cost_ = 0;
  std::uint64_t received_credit_ = 0;
  std::vector<Begun> begun_;  // In the order in which the peer has begun them.
  // Where the payload that is coming goes. The request ends with this frame unless pieces follow.
  Request* target_request_ = nullptr;
  Matcher::Unexpected* target_unexpected_ = nullptr;
};

}  // namespace stretto::transport
