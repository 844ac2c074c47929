// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <utility>

#include "stretto/base/file_descriptor.h"

namespace stretto::testing {

// Returns two connected TCP sockets of this host. `buffer_bytes`: the size of their buffers; 0: the
// kernel's default.
std::pair<FileDescriptor, FileDescriptor> make_tcp_pair(int buffer_bytes = 0);
// Returns two connected Unix sockets. `type`: SOCK_STREAM, with or without SOCK_NONBLOCK.
std::pair<FileDescriptor, FileDescriptor> make_unix_pair(int type);

}  // namespace stretto::testing
