// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Another process may leave any position of its own and any bytes in the ring that it shares.
// Sources: ring.cc

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "stretto/transport/ring.h"

using namespace stretto::transport;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto bytes = std::make_unique<std::byte[]>(Ring::kBytes);
  Ring::Control control;
  Ring ring(&control, bytes.get());
  struct Action {
    std::uint64_t position;
    std::uint32_t bytes;
    std::uint32_t kind;
  } action;
  for (; size >= sizeof(action); data += sizeof(action), size -= sizeof(action)) {
    std::memcpy(&action, data, sizeof(action));
    // The buffer ends at exactly this size, so that the address sanitizer sees accesses beyond it.
    std::vector<std::byte> buffer(action.bytes % (2 * Ring::kBytes));
    stretto::Result<std::size_t> moved = std::size_t{0};
    const stretto::ConstByteSpan whole = buffer;
    switch (action.kind % 4) {
      case 0:
        control.written = action.position;
        break;
      case 1:
        control.read = action.position;
        break;
      case 2:
        moved = ring.read(buffer);
        break;
      default:
        moved = ring.write({&whole, 1});
    }
    if (moved.ok() ? *moved > buffer.size()
                   : moved.status().code() != stretto::StatusCode::protocol) {
      std::abort();
    }
  }
  return 0;
}
