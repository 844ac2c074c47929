// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/status.h"
#include "stretto/base/view.h"
#include "stretto/bootstrap/handshake.h"

namespace stretto::bootstrap {

enum class HandshakeRole : std::uint8_t { client = 1, server = 2 };

// Sizes of what travels; docs/internals/wire_format.md draws the frames.
inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kTagBytes = 32;
// The part of a hello whose form is the same in every version of the protocol.
inline constexpr std::size_t kIntroductionBytes = 64;
inline constexpr std::size_t kHelloBytes = kIntroductionBytes + kNonceBytes + kTagBytes;
inline constexpr std::size_t kBuildBytes = 32;

// HMAC-SHA256 over a label and byte strings of fixed lengths. Because the lengths are fixed,
// different inputs never give the same concatenation.
std::array<std::byte, kTagBytes> authenticate(const JobKey& key, std::string_view label,
                                              std::initializer_list<ConstByteSpan> parts);

// One side of a handshake, without a socket: bytes in, bytes out. So handshake_as_client(),
// AuthenticatingListener and the fuzzer run the same code.
//
// Use: send take_output(). Until done(), pass the peer's bytes to receive() and send take_output()
// again. After a failure there may be a last output: the server's introduction alone, for a client
// of another version or with another key. Not thread safe.
class HandshakeMachine {
 public:
  // Draws a nonce. A server listens for its own rank and for those of `others`, which must outlive
  // the machine. Fails with invalid_argument if `self` cannot be sent.
  static Result<HandshakeMachine> start(HandshakeRole role, const JobKey& key, Purpose purpose,
                                        const Identity& self,
                                        const std::set<std::int32_t>* others = nullptr);

  // How many bytes receive() accepts; 0 once the handshake is done or has failed. Reading more from
  // the socket would take bytes that follow the handshake.
  std::size_t wanted_bytes() const { return frame_bytes_ - received_.size(); }
  // `bytes` is at most wanted_bytes() long.
  Status receive(ConstByteSpan bytes);
  // The bytes to send now; often none.
  std::vector<std::byte> take_output() { return std::exchange(output_, {}); }
  bool done() const { return state_ == State::done; }
  // The identity that the peer claims; proven only once done().
  const Identity& peer() const { return peer_; }
  // Whether the peer has introduced itself as a stretto peer, even if the handshake failed
  // afterwards.
  bool introduced() const { return introduced_; }
  // Whether the peer's hello was made with the key, by the peer itself or by a process that it
  // overheard. After a failure this is true only for a peer of another version, which cannot be
  // asked for the proof.
  bool holds_key() const { return holds_key_; }
  // The failure when the stream ends or the deadline passes before done().
  Status ended_early() const;
  Status timed_out() const;

 private:
  enum class State { hello, other_version, confirmation, done, failed };
  using Hello = std::array<std::byte, kHelloBytes>;
  using Tag = std::array<std::byte, kTagBytes>;

  HandshakeMachine(HandshakeRole role, const JobKey& key, Purpose purpose, const Identity& self,
                   const std::set<std::int32_t>* others)
      : role_(role), key_(key), purpose_(purpose), self_(self), others_(others) {}

  void expect(State state, std::size_t bytes);
  Status fail(Status status);
  Status check_beginning();
  Status check_introduction();
  Status check_hello();
  bool listens_for(std::int32_t rank) const;
  Status check_agreement() const;
  Status check_confirmation();
  Status version_mismatch() const;
  Status check_key_of_other_version();
  void send_introduction();
  Hello make_introduction() const;
  void send_hello(const Hello* peer_hello);
  void send(ConstByteSpan bytes);
  Tag hello_tag(HandshakeRole sender, const Hello& hello, const Hello* answered) const;
  Tag confirmation_tag(HandshakeRole sender) const;
  HandshakeRole other_role() const;
  // For error messages.
  std::string peer_name() const;
  std::string own_name() const;

  HandshakeRole role_;
  JobKey key_;
  Purpose purpose_;
  Identity self_;
  const std::set<std::int32_t>* others_;
  std::array<std::byte, kNonceBytes> nonce_{};
  State state_ = State::hello;
  std::size_t frame_bytes_ = kHelloBytes;
  std::vector<std::byte> received_;
  std::vector<std::byte> output_;
  bool introduced_ = false;
  bool holds_key_ = false;
  Hello own_hello_{};
  Hello peer_hello_{};
  Identity peer_;
};

}  // namespace stretto::bootstrap
