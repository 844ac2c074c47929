// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/transport.h"

#include <fmt/format.h>

namespace stretto::transport {

Status mismatch_status(Rank other, const OperationDescriptor& theirs, Rank self,
                       const OperationDescriptor& ours, std::uint32_t sequence) {
  const std::string_view difference = first_difference(theirs, ours);
  const std::string number =
      sequence == kPointToPoint ? std::string() : fmt::format(" as operation #{}", sequence);
  return {StatusCode::mismatch,
          fmt::format("rank {} called {}{}, rank {} called {}. First difference: {}", other.value(),
                      describe(theirs), number, self.value(), describe(ours),
                      difference.empty() ? "size of a message" : difference),
          other};
}

}  // namespace stretto::transport
