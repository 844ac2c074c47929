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

// Two ends that have set up TLS, of ranks that hold the same key; with new keys after so many
// records, or as seldom as usual.
TlsPair make_tls_pair(std::pair<FileDescriptor, FileDescriptor> sockets, Rank first, Rank second,
                      std::optional<std::uint64_t> records_per_key = std::nullopt);

}  // namespace stretto::testing
