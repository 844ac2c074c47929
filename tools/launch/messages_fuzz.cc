// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Anything may come over the pipes between a launcher and its agent on another host, to which a
// shell's start-up files also write.
// Sources: messages.cc ../../stretto/bootstrap/handshake.cc
// Sources: ../../stretto/bootstrap/handshake_machine.cc ../../stretto/bootstrap/resolve.cc
// Sources: ../../stretto/bootstrap/host_port.cc ../../stretto/bootstrap/socket.cc

#include <cstdlib>

#include "tools/launch/messages.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto::launch;
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  if (auto order = parse_order(line); order.ok()) {
    const auto again = parse_order(format_order(*order));
    if (!again.ok() || order->options.local_size() < 1) std::abort();
  }
  if (auto event = parse_event(line); event.ok()) {
    if (!parse_event(format_event(*event)).ok() || event->kind > RankEvent::Kind::lost)
      std::abort();
  }
  if (auto obituary = parse_obituary(line); obituary.ok()) {
    const auto again = parse_obituary(format_obituary(*obituary));
    if (!again.ok() || again.value().rank != obituary->rank) std::abort();
  }
  if (auto restart = parse_restart(line); restart.ok()) {
    const auto again = parse_restart(format_restart(restart.value()));
    if (!again.ok() || again.value().local_rank != restart.value().local_rank) std::abort();
  }
  return 0;
}
