// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/stream_guard.h"

namespace stretto {

void*& StreamGuard::of_thread() {
  thread_local void* stream = nullptr;
  return stream;
}

}  // namespace stretto
