// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/support/tls_pairs.h"

#include <array>

namespace stretto::testing {

using bootstrap::TlsStream;

TlsPair make_tls_pair(std::pair<FileDescriptor, FileDescriptor> sockets, Rank first, Rank second) {
  const auto key = bootstrap::JobKey::parse(std::string(64, '7')).or_throw();
  TlsPair pair{
      TlsStream::create(std::move(sockets.first), {.key = key, .self = first, .peer = second})
          .or_throw(),
      TlsStream::create(std::move(sockets.second), {.key = key, .self = second, .peer = first})
          .or_throw()};
  const std::array<TlsStream*, 2> both{pair.first.get(), pair.second.get()};
  finish_handshakes(both, Deadline::after(std::chrono::seconds(10))).or_throw();
  return pair;
}

}  // namespace stretto::testing
