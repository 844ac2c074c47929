// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Feeds both roles of a handshake with arbitrary bytes in arbitrary pieces, from the start or after
// a genuine hello. Without the key nothing may pass.
// Sources: handshake.cc handshake_machine.cc resolve.cc host_port.cc socket.cc

#include <algorithm>
#include <cstdlib>

#include "stretto/bootstrap/handshake_machine.h"

namespace {

using stretto::bootstrap::HandshakeMachine;
using stretto::bootstrap::HandshakeRole;

HandshakeMachine start(HandshakeRole role) {
  const auto key = stretto::bootstrap::JobKey::parse(std::string(64, 'a'));
  const auto purpose = stretto::bootstrap::Purpose::mesh_tcp;
  return std::move(HandshakeMachine::start(role, key.value(), purpose, {.rank = 0}).value());
}

// Gets both roles past the hello, which a fuzzer cannot forge.
void exchange_hellos(HandshakeMachine& client, HandshakeMachine& server) {
  if (!server.receive(client.take_output()).ok()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const bool fuzz_client = (data[0] & 1) != 0;
  HandshakeMachine client = start(HandshakeRole::client);
  HandshakeMachine server = start(HandshakeRole::server);
  if ((data[0] & 2) != 0) {
    exchange_hellos(client, server);
    if (fuzz_client && !client.receive(server.take_output()).ok()) std::abort();
  }
  HandshakeMachine& target = fuzz_client ? client : server;
  const std::size_t piece_bytes = data[1] % 64 + 1u;
  stretto::ConstByteSpan rest(reinterpret_cast<const std::byte*>(data) + 2, size - 2);
  while (!rest.empty() && target.wanted_bytes() > 0) {
    const std::size_t bytes = std::min({piece_bytes, target.wanted_bytes(), rest.size()});
    if (!target.receive(rest.first(bytes)).ok()) break;
    (void)target.take_output();
    rest = rest.subspan(bytes);
  }
  if (target.done()) std::abort();
  return 0;
}
