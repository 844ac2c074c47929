// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/handshake.h"

#include <openssl/rand.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "stretto/base/hexadecimal.h"
#include "stretto/base/log.h"
#include "stretto/base/would_block.h"
#include "stretto/bootstrap/handshake_machine.h"
#include "stretto/bootstrap/socket.h"

namespace stretto::bootstrap {
namespace {

// Reads a part of the wanted bytes. Slow peers do not extend the deadline.
Status read_some(int fd, HandshakeMachine& machine, const WaitLimit& limit) {
  std::byte bytes[kHelloBytes];
  while (true) {
    if (limit.passed()) return machine.timed_out();
    const ssize_t count = ::recv(fd, bytes, machine.wanted_bytes(), MSG_DONTWAIT);
    if (count > 0) return machine.receive({bytes, static_cast<std::size_t>(count)});
    if (count == 0 || errno == ECONNRESET) return machine.ended_early();
    if (!would_block(errno)) return system_status("recv");
    const Status waited = wait_for(fd, POLLIN, limit);
    if (!waited.ok() && !limit.passed()) return waited;
  }
}

Status send_output(int fd, HandshakeMachine& machine, const WaitLimit& limit) {
  const std::vector<std::byte> output = machine.take_output();
  const Status sent = write_all(fd, output, limit);
  // If the peer hung up, what it sent before makes the better error message.
  return sent.code() == StatusCode::peer_lost ? Status() : sent;
}

}  // namespace

Result<JobKey> JobKey::generate() {
  JobKey key;
  if (::RAND_bytes(key.bytes_.data(), static_cast<int>(key.bytes_.size())) != 1) {
    return status_of(StatusCode::system, "the system's random source gave no bytes");
  }
  return key;
}

Result<JobKey> JobKey::parse(std::string_view hexadecimal) {
  JobKey key;
  const auto bytes = from_hex(hexadecimal);
  if (!bytes || bytes->size() != key.bytes_.size()) {
    // The text may be a secret with a typing error, so no message shows it.
    return status_of(StatusCode::invalid_argument,
                     "a job key has {} hexadecimal digits; this text has {} characters{}",
                     2 * key.bytes_.size(), hexadecimal.size(),
                     hexadecimal.size() == 2 * key.bytes_.size() ? ", not all digits" : "");
  }
  std::ranges::copy(*bytes, key.bytes_.begin());
  return key;
}

JobKey JobKey::for_group(const JobKey& nonce) const {
  const auto tag =
      authenticate(*this, "stretto group key", {std::as_bytes(std::span(nonce.bytes_))});
  JobKey key;
  static_assert(sizeof(key.bytes_) == sizeof(tag));
  std::memcpy(key.bytes_.data(), tag.data(), tag.size());
  return key;
}

std::string JobKey::hexadecimal() const { return to_hex(bytes_); }

Status shake_hands(int fd, HandshakeMachine& machine, const WaitLimit& limit) {
  STRETTO_RETURN_IF_ERROR(send_output(fd, machine, limit));
  while (!machine.done()) {
    const Status received = read_some(fd, machine, limit);
    const Status sent = send_output(fd, machine, limit);
    STRETTO_RETURN_IF_ERROR(received);
    STRETTO_RETURN_IF_ERROR(sent);
  }
  return {};
}

Result<Identity> handshake_as_client(int fd, const JobKey& key, Purpose purpose,
                                     const Identity& self, const WaitLimit& limit) {
  STRETTO_ASSIGN_OR_RETURN(auto machine,
                           HandshakeMachine::start(HandshakeRole::client, key, purpose, self));
  STRETTO_RETURN_IF_ERROR(shake_hands(fd, machine, limit));
  return machine.peer();
}

Result<FileDescriptor> connect_and_greet(const std::function<Result<FileDescriptor>()>& connect,
                                         const std::function<Status(int fd)>& greet,
                                         const WaitLimit& limit) {
  constexpr Duration kLongestPause = std::chrono::milliseconds(500);
  Duration pause = std::chrono::milliseconds(1);
  for (int attempt = 1;; ++attempt) {
    Result<FileDescriptor> fd = connect();
    if (!fd.ok()) return fd;
    const Status greeted = greet(fd->get());
    if (greeted.ok()) return fd;
    if (greeted.code() != StatusCode::peer_lost) return greeted;
    const std::string server = peer_name(fd->get());
    fd->reset();
    if (limit.passed()) {
      return status_of(StatusCode::timeout, "{} attempts to greet {} failed, the last so: {}",
                       attempt, server, greeted.message());
    }
    STRETTO_RETURN_IF_ERROR(limit.look());
    log(LogLevel::info, "connecting to {} again: {}", server, greeted.message());
    std::this_thread::sleep_for(std::min(pause, limit.deadline().remaining()));
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace stretto::bootstrap
