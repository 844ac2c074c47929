// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/support/tls_pairs.h"

#include <array>

namespace stretto::testing {

using bootstrap::TlsStream;

TlsPair make_tls_pair(std::pair<FileDescriptor, FileDescriptor> sockets, Rank first, Rank second,
                      std::optional<std::uint64_t> records_per_key) {
  const auto end = [&](FileDescriptor& socket, Rank self, Rank peer) {
    TlsStream::Options options{.key = bootstrap::JobKey::parse(std::string(64, '7')).or_throw(),
                               .self = self,
                               .peer = peer};
    if (records_per_key) options.records_per_key = *records_per_key;
    return TlsStream::create(std::move(socket), options).or_throw();
  };
  TlsPair pair{end(sockets.first, first, second), end(sockets.second, second, first)};
  const std::array<TlsStream*, 2> both{pair.first.get(), pair.second.get()};
  finish_handshakes(both, Deadline::after(std::chrono::seconds(10))).or_throw();
  return pair;
}

}  // namespace stretto::testing
