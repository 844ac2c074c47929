// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <vector>

#include "stretto/base/file_descriptor.h"
#include "stretto/transport/stream_plane.h"

namespace stretto::transport {

// The streams of a StreamPlane on sockets, which must be asked, as MPI must. `sockets[r]` is
// connected to rank r.
std::unique_ptr<Streams> make_socket_streams(std::vector<FileDescriptor> sockets);

}  // namespace stretto::transport
