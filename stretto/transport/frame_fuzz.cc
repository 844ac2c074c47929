// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Feeds the decoder of frame headers with arbitrary bytes, and with good headers that are wrong in
// some bytes, because few arbitrary ones get past the magic number. encode() must write the same
// bytes as the decoder has accepted.
// Sources: frame.cc

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "stretto/transport/frame.h"

using namespace stretto::transport;

namespace {

void check(const FrameHeader& header) {
  const stretto::Result<Frame> frame = decode(header);
  if (!frame.ok()) {
    if (frame.status().message().empty()) std::abort();
    return;
  }
  if (encode(frame.value()) != header) std::abort();
  if (frame.value().payload_bytes() > frame.value().message_bytes) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FrameHeader header{};
  if (size > 0) std::memcpy(header.data(), data, std::min(size, header.size()));
  check(header);
  header = encode({.kind = FrameKind::message});
  for (std::size_t i = 0; i + 1 < size; i += 2) {
    header[data[i] % header.size()] = static_cast<std::byte>(data[i + 1]);
  }
  check(header);
  return 0;
}
