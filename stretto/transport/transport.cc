// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/transport.h"

#include <fmt/format.h>

namespace stretto::transport {
namespace {

std::string numbered(std::uint32_t sequence) {
  return sequence == kPointToPoint ? std::string() : fmt::format(" as operation #{}", sequence);
}

// With what calls may differ in although they look alike.
std::string describe_call(const OperationDescriptor& operation, const OperationDescriptor& other) {
  std::string text = describe(operation);
  if (operation.algorithm != other.algorithm) {
    text += operation.algorithm == 0 ? " by the chosen algorithm"
                                     : fmt::format(" by algorithm {}", operation.algorithm);
  }
  if (operation.layout != other.layout) {
    text += operation.layout == 0 ? " with equal shares"
                                  : fmt::format(" with layout {:x}", operation.layout);
  }
  return text;
}

}  // namespace

Status mismatch_status(Rank other, const OperationDescriptor& theirs, Rank self,
                       const OperationDescriptor& ours, std::uint32_t sequence) {
  const std::string_view difference = first_difference(theirs, ours);
  return {StatusCode::mismatch,
          fmt::format("rank {} called {}{}, rank {} called {}. First difference: {}", other.value(),
                      describe_call(theirs, ours), numbered(sequence), self.value(),
                      describe_call(ours, theirs),
                      difference.empty() ? "size of a message" : difference),
          other};
}

Status disagreement(const MessageEnd& sender, const MessageEnd& receiver, Rank blamed,
                    std::uint32_t sequence) {
  if (sender.operation != receiver.operation) {
    const MessageEnd& other = sender.rank == blamed ? sender : receiver;
    const MessageEnd& self = sender.rank == blamed ? receiver : sender;
    return mismatch_status(other.rank, other.operation, self.rank, self.operation, sequence);
  }
  return {StatusCode::mismatch,
          fmt::format("rank {} sent {} bytes, rank {} expects {}, both in {}{}. First difference: "
                      "size of a message",
                      sender.rank.value(), sender.message_bytes, receiver.rank.value(),
                      receiver.message_bytes, describe(sender.operation), numbered(sequence)),
          blamed};
}

}  // namespace stretto::transport
