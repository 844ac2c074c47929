// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <utility>

#include "stretto/base/file_descriptor.h"

namespace stretto::testing {

// Two connected TCP sockets of this host. The size of their buffers in bytes; zero: the kernel's.
std::pair<FileDescriptor, FileDescriptor> make_tcp_pair(int buffer_bytes = 0);
// `type` is SOCK_STREAM, with SOCK_NONBLOCK or without.
std::pair<FileDescriptor, FileDescriptor> make_unix_pair(int type);

}  // namespace stretto::testing
