// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <vector>

#include "stretto/transport/link.h"

namespace stretto::transport {

// A link to nobody, for tests: it keeps what is written, and returns what it has been fed.
class FakeLink : public Link {
 public:
  std::string_view name() const override { return "fake"; }
  Result<std::size_t> write(std::span<const ConstByteSpan> pieces) override {
    if (!write_failure.ok()) return write_failure;
    std::size_t taken = 0;
    for (const ConstByteSpan piece : pieces) {
      const std::size_t step = std::min(piece.size(), room_bytes);
      written.insert(written.end(), piece.begin(), piece.begin() + static_cast<long>(step));
      room_bytes -= step;
      taken += step;
    }
    return taken;
  }
  std::size_t held_bytes() const override { return held; }
  Result<std::size_t> read(ByteSpan into) override {
    const ConstByteSpan rest = std::span(incoming).subspan(read_bytes);
    if (rest.empty() && ended) return status_of(StatusCode::peer_lost, "the end");
    const std::size_t step = std::min({into.size(), rest.size(), read_max_bytes});
    std::copy_n(rest.begin(), step, into.begin());
    read_bytes += step;
    return step;
  }
  bool readable() const override { return read_bytes < incoming.size() || ended; }
  Contact check_contact(TimePoint) override { return contact; }
  void disconnect() override { disconnected = true; }
  bool finish() override { return finished; }

  void feed(ConstByteSpan bytes) { incoming.insert(incoming.end(), bytes.begin(), bytes.end()); }

  std::vector<std::byte> written;
  std::size_t held = 0;
  std::size_t room_bytes = static_cast<std::size_t>(-1);
  std::vector<std::byte> incoming;
  std::size_t read_bytes = 0;  // Of `incoming`.
  std::size_t read_max_bytes = static_cast<std::size_t>(-1);
  bool ended = false;
  Contact contact;
  bool disconnected = false;
  bool finished = true;
  Status write_failure;
};

}  // namespace stretto::transport
