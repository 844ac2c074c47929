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

// The bytes of a link in TLS 1.3, for which both sides take a secret of their pair of ranks from
// the job's key (docs/internals/wire_format.md): no certificates, fresh keys for each connection,
// and who has recorded it learns nothing from the job's key later.
//
// The end of the socket is the end of the stream, as without TLS: who leaves in good order has said
// so before, in a frame.
class TlsStream final : public transport::tcp::ByteStream {
 public:
  struct Options {
    JobKey key;
    Rank self = 0;
    Rank peer = 0;  // The lower of the two is the server.
    // After so many records, each of up to 16 KiB, this side goes on with new keys. AES-GCM stays
    // within its bounds for 2^24.5 of them (RFC 8446, 5.5).
    std::uint64_t records_per_key = std::uint64_t{1} << 22;
  };
  // Nothing is sent yet. The socket is connected, and its peer has been authenticated.
  static Result<std::unique_ptr<TlsStream>> create(FileDescriptor socket, const Options& options);
  ~TlsStream() override;

  // Goes on with TLS's handshake, as far as it can now. Returns for what to wait, as poll() names
  // it; 0: it has ended. Fails with refused if the peer is not who it should be, or the bytes are
  // not what it has sent; with peer_lost if it has gone.
  Result<short> advance();
  Rank peer() const { return options_.peer; }

  std::string_view name() const override { return "tcp with TLS"; }
  Moved write(std::span<const ConstByteSpan> pieces) override;
  std::size_t held_bytes() const override { return staged_bytes_; }
  Moved read(ByteSpan into) override;

 private:
  struct Session;  // The library's objects, and what they call back for.

  TlsStream(FileDescriptor socket, const Options& options);
  std::size_t stage(std::span<const ConstByteSpan> pieces, std::size_t skip);
  Moved outcome(int returned);
  // Tells the peer, or keeps what to tell it.
  void renew_keys();

  Options options_;
  std::unique_ptr<Session> session_;
  Status violation_;
  // What is being written: once a record has been encrypted it must be sent, and it counts as taken
  // when all of it has been.
  std::vector<std::byte> staging_;
  std::size_t staged_bytes_ = 0;
  std::uint64_t records_ = 0;  // By the present key.
};

// Ends the handshakes of all, in whatever order their peers come to it. Fails as advance() does, or
// with timeout, naming the rank.
Status finish_handshakes(std::span<TlsStream* const> streams, const WaitLimit& limit);

}  // namespace stretto::bootstrap
