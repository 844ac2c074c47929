// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <memory>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"

namespace stretto {

// Makes memory for several processes: an anonymous file of `bytes` zeros, sealed so that its owner
// cannot make it smaller while others have mapped it. `name` appears in /proc.
Result<FileDescriptor> make_sealed_memory(const char* name, std::size_t bytes);

// Whether the file is sealed as make_sealed_memory() does it. It may have more seals: the system
// adds one where vm.memfd_noexec is set.
bool is_sealed_memory(int descriptor);

// Maps the first `bytes` of such a file. They are unmapped when the last copy of the pointer is
// destroyed.
Result<std::shared_ptr<std::byte>> map_shared_memory(int descriptor, std::size_t bytes);

}  // namespace stretto
