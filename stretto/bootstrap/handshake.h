// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"
#include "stretto/base/wait_limit.h"

namespace stretto::bootstrap {

class HandshakeMachine;

// The secret that all processes of a job share; 32 bytes, written as 64 hexadecimal digits.
class JobKey {
 public:
  // A fresh key from the operating system's random source.
  static Result<JobKey> generate();
  // Refuses anything but 64 hexadecimal digits.
  static Result<JobKey> parse(std::string_view hexadecimal);
  // A key for one group of the processes that hold this key. The nonce is no secret.
  JobKey for_group(const JobKey& nonce) const;
  std::string hexadecimal() const;
  const std::array<std::uint8_t, 32>& bytes() const { return bytes_; }

 private:
  std::array<std::uint8_t, 32> bytes_{};
};

// Version of everything that travels between ranks. Ranks of different versions refuse each other.
inline constexpr std::uint32_t kProtocolVersion = 9;

// The release, for error messages.
inline constexpr std::string_view kBuild = "0.1.0";

// The purpose of a connection; both sides must have the same one.
enum class Purpose : std::uint8_t { store = 1, mesh_tcp = 2, mesh_unix = 3, host_listener = 4 };

// Who a side says it is. Trusted only after the handshake has succeeded.
struct Identity {
  std::int32_t rank = -1;  // -1: not a rank (the launcher, or a client that none has started).
  std::uint32_t protocol_version = kProtocolVersion;
  std::string build = std::string(kBuild);  // At most 32 bytes.
  std::uint64_t configuration = 0;          // Hash of settings that must be equal on all ranks.
  // For a client: the rank to reach, for which the server must listen; -1: any server. A server's
  // own value is not used.
  std::int32_t target = -1;
};

// Mutual authentication over a connected stream socket (challenge and response: each side proves by
// an HMAC-SHA256 over both sides' nonces and identities that it holds the job key; the key itself
// never travels). The server is an AuthenticatingListener. Blocks until both sides have agreed or
// the limit is reached. On success it returns the peer's identity, `fd` is ready for use, and no
// byte after the handshake has been read.
//
// Fails with refused and a sentence: not a stretto peer, other protocol version ("rank 4 speaks
// protocol 3 (build 1.2.0), this rank 0 protocol 4 (build 1.3.1); refusing to join"), other
// configuration, wrong job key, wrong purpose, another rank than the wanted one. A peer without the
// key learns the server's version and that it is refused. A peer that is not stretto only sees that
// the connection is closed. The client fails with peer_lost if the server closed the connection
// without a verdict: the server has ended, or it is flooded and makes room. Then another attempt is
// worth while. After a failure the caller closes `fd`.
Result<Identity> handshake_as_client(int fd, const JobKey& key, Purpose purpose,
                                     const Identity& self, const WaitLimit& limit);

// The same with a given machine of either role. After a failure `machine` still knows the identity
// that the peer claimed. Of a server that refuses, the last bytes may be lost when `fd` is closed.
Status shake_hands(int fd, HandshakeMachine& machine, const WaitLimit& limit);

// Calls `connect` and `greet`, and repeats both after growing pauses while `greet` fails with
// peer_lost, because a server that makes room closes unproven connections. Fails with timeout at
// the limit, and with any other failure of the two calls at once.
Result<FileDescriptor> connect_and_greet(const std::function<Result<FileDescriptor>()>& connect,
                                         const std::function<Status(int fd)>& greet,
                                         const WaitLimit& limit);

}  // namespace stretto::bootstrap
