// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/transport.h"

#include <fmt/format.h>

#include "stretto/transport/frame.h"

namespace stretto::transport {
namespace {

std::string numbered(std::uint32_t sequence, std::uint32_t tag) {
  if (sequence == kPointToPoint) return fmt::format(" with tag {}", tag);
  if (sequence >= kSetUpSequence) return " while setting up the communicator";
  return fmt::format(" as operation #{}", sequence);
}

}  // namespace

Status mismatch_status(const RankCall& other, const RankCall& self, std::uint32_t tag) {
  // One rank may have called something else before that did not need the other rank.
  const bool is_numbered_alike = other.sequence == self.sequence;
  std::string_view difference = first_difference(other.operation, self.operation);
  if (difference.empty()) {
    difference = is_numbered_alike ? "size of a message" : "how many operations came before";
  }
  return {StatusCode::mismatch,
          fmt::format("rank {} called {}{}, rank {} called {}{}. First difference: {}",
                      other.rank.value(), describe_against(other.operation, self.operation),
                      numbered(other.sequence, tag), self.rank.value(),
                      describe_against(self.operation, other.operation),
                      is_numbered_alike ? "" : numbered(self.sequence, tag), difference),
          other.rank};
}

bool agree(const Request& receive, const Frame& message, Rank self) {
  const MessageKey& key = receive.key;
  const std::size_t expected_bytes = receive.incoming.size();
  if (receive.operation != message.operation) {
    complete(receive, mismatch_status({receive.peer, message.operation, key.sequence},
                                      {self, receive.operation, key.sequence}, key.segment));
    return false;
  }
  if (expected_bytes == message.message_bytes) return true;
  complete(
      receive,
      {StatusCode::mismatch,
       fmt::format("rank {} sent {} bytes, rank {} expects {}, both in {}{}. First difference: "
                   "size of a message",
                   receive.peer.value(), message.message_bytes, self.value(), expected_bytes,
                   describe(message.operation), numbered(key.sequence, key.segment)),
       receive.peer});
  return false;
}

}  // namespace stretto::transport
