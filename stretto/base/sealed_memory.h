// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <fcntl.h>

#include <cstddef>
#include <memory>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"

namespace stretto {

// Who has mapped memory with these seals need not fear that its owner makes it smaller.
inline constexpr int kMemorySeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Memory for several processes: a file without a name, of so many zeros, with these seals. `name`
// is what /proc shows.
Result<FileDescriptor> make_sealed_memory(const char* name, std::size_t bytes);

// So many bytes of such a file; unmapped when the last copy goes.
Result<std::shared_ptr<std::byte>> map_shared_memory(int descriptor, std::size_t bytes);

}  // namespace stretto
