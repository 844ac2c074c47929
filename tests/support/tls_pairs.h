// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <utility>

#include "stretto/base/file_descriptor.h"
#include "stretto/bootstrap/tls_stream.h"

namespace stretto::testing {

using TlsPair =
    std::pair<std::unique_ptr<bootstrap::TlsStream>, std::unique_ptr<bootstrap::TlsStream>>;

// Two ends that have set up TLS, of ranks that hold the same key.
TlsPair make_tls_pair(std::pair<FileDescriptor, FileDescriptor> sockets, Rank first, Rank second);

}  // namespace stretto::testing
