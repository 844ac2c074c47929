// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/file_descriptor.h"

#include <unistd.h>

namespace stretto {

void FileDescriptor::reset() {
  // Not retried on EINTR: Linux has released the number by then, and another thread may own it.
  if (number_ >= 0) ::close(release());
}

}  // namespace stretto
