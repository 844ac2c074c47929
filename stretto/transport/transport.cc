// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/transport.h"

#include <fmt/format.h>

#include "stretto/transport/data_plane.h"

namespace stretto::transport {
namespace {

std::string numbered(std::uint32_t sequence, std::uint32_t tag) {
  if (sequence == kPointToPoint) return fmt::format(" with tag {}", tag);
  if (sequence >= kSetUpSequence) return " while setting up the communicator";
  return fmt::format(" as operation #{}", sequence);
}

}  // namespace

Status mismatch_status(const RankCall& other, const RankCall& self, std::uint32_t tag) {
  // One may have done something else before, which had no need of the other.
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

Status disagreement(const MessageEnd& sender, const MessageEnd& receiver, Rank blamed,
                    const MessageKey& key) {
  if (sender.operation != receiver.operation) {
    const MessageEnd& other = sender.rank == blamed ? sender : receiver;
    const MessageEnd& self = sender.rank == blamed ? receiver : sender;
    return mismatch_status({other.rank, other.operation, key.sequence},
                           {self.rank, self.operation, key.sequence}, key.segment);
  }
  return {StatusCode::mismatch,
          fmt::format("rank {} sent {} bytes, rank {} expects {}, both in {}{}. First difference: "
                      "size of a message",
                      sender.rank.value(), sender.message_bytes, receiver.rank.value(),
                      receiver.message_bytes, describe(sender.operation),
                      numbered(key.sequence, key.segment)),
          blamed};
}

bool agree(const Request& receive, const MessageLabel& message, Rank self) {
  const std::size_t bytes = receive.incoming.size();
  if (receive.operation == message.operation && bytes == message.message_bytes) return true;
  complete(receive,
           disagreement({.rank = receive.peer,
                         .operation = message.operation,
                         .message_bytes = message.message_bytes},
                        {.rank = self, .operation = receive.operation, .message_bytes = bytes},
                        receive.peer, receive.key));
  return false;
}

}  // namespace stretto::transport
