// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <memory>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"

namespace stretto {

// Memory for several processes: a file without a name, of so many zeros, sealed, so that who has
// mapped it need not fear that its owner makes it smaller. `name` is what /proc shows.
Result<FileDescriptor> make_sealed_memory(const char* name, std::size_t bytes);

// Whether the file is sealed as such memory is. It may have more seals: where vm.memfd_noexec is
// set, the system adds one.
bool is_sealed_memory(int descriptor);

// So many bytes of such a file; unmapped when the last copy goes.
Result<std::shared_ptr<std::byte>> map_shared_memory(int descriptor, std::size_t bytes);

}  // namespace stretto
