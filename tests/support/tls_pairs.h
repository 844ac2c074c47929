// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "stretto/base/file_descriptor.h"
#include "stretto/bootstrap/tls_stream.h"

namespace stretto::testing {

using TlsPair =
    std::pair<std::unique_ptr<bootstrap::TlsStream>, std::unique_ptr<bootstrap::TlsStream>>;

// Returns the two ends of a TLS connection between ranks that hold the same key. They change keys
// after `records_per_key` records; by default as seldom as usual.
TlsPair make_tls_pair(std::pair<FileDescriptor, FileDescriptor> sockets, Rank first, Rank second,
                      std::optional<std::uint64_t> records_per_key = std::nullopt);

}  // namespace stretto::testing
