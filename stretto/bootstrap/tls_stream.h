// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "stretto/base/id.h"
#include "stretto/base/wait_limit.h"
#include "stretto/bootstrap/handshake.h"
#include "stretto/transport/tcp/link.h"

namespace stretto::bootstrap {

// The bytes of a link in TLS 1.3. Both sides derive a secret of their pair of ranks from the job
// key (docs/internals/wire_format.md). There are no certificates. Each connection has fresh keys,
// so a recording cannot be decrypted with the job key later.
//
// The end of the socket is the end of the stream, as without TLS: a peer that leaves in good order
// has said so before in a frame.
class TlsStream final : public transport::tcp::ByteStream {
 public:
  struct Options {
    JobKey key;
    Rank self = 0;
    Rank peer = 0;  // The lower of the two is the server.
    // After this many records of up to 16 KiB, this side changes its keys. AES-GCM stays within its
    // bounds for 2^24.5 records (RFC 8446, 5.5).
    std::uint64_t records_per_key = std::uint64_t{1} << 22;
  };
  // Sends nothing yet. `socket` must be connected, and its peer authenticated.
  static Result<std::unique_ptr<TlsStream>> create(FileDescriptor socket, const Options& options);
  ~TlsStream() override;

  // Continues the TLS handshake as far as possible now. Returns the poll() events to wait for; 0:
  // the handshake has ended. Fails with refused if the peer does not hold the secret or bytes were
  // altered on the way, and with peer_lost if the peer has gone.
  Result<short> advance();
  Rank peer() const { return options_.peer; }

  std::string_view name() const override { return "tcp with TLS"; }
  Moved write(std::span<const ConstByteSpan> pieces) override;
  std::size_t held_bytes() const override { return staged_bytes_; }
  Moved read(ByteSpan into) override;

 private:
  struct Session;  // OpenSSL's objects, and the data for their callbacks.

  TlsStream(FileDescriptor socket, const Options& options);
  std::size_t stage(std::span<const ConstByteSpan> pieces, std::size_t skip);
  Moved outcome(int returned);
  // Sends the peer the key update, or keeps it for the next write.
  void renew_keys();

  Options options_;
  std::unique_ptr<Session> session_;
  Status violation_;
  // The record that is being written. Once encrypted, a record must be sent; its bytes count as
  // written when all of it has been sent.
  std::vector<std::byte> staging_;
  std::size_t staged_bytes_ = 0;
  std::uint64_t records_ = 0;  // Records written so far.
};

// Completes the handshakes of all `streams`, in whatever order their peers reach them. Fails like
// advance(), or with timeout, naming the rank.
Status finish_handshakes(std::span<TlsStream* const> streams, const WaitLimit& limit);

}  // namespace stretto::bootstrap
