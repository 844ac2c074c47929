// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stretto/base/file_descriptor.h"
#include "stretto/transport/tcp/link.h"

namespace stretto::transport::tcp {

// A link over several TCP connections to the same peer, for networks that one connection cannot
// fill, or hosts with several network cards.
//
// The stream is cut into blocks, each behind a header with its number and its length. Of the
// connections that have room, the one that has been given the fewest bytes gets the next block. The
// reader takes the blocks in the order of their numbers. A block that comes early waits in the
// kernel's buffers, so there is no extra copy.
class StripedLink final : public Link {
 public:
  static constexpr std::size_t kBlockBytes = 64 * 1024;

  // At least one stripe; stripe i is connected to stripe i of the peer.
  static Result<std::unique_ptr<Link>> create(std::vector<std::unique_ptr<TcpLink>> stripes);

  std::string_view name() const override { return name_; }
  Result<std::size_t> write(std::span<const ConstByteSpan> pieces) override;
  std::size_t held_bytes() const override;
  Result<std::size_t> read(ByteSpan into) override;
  bool readable() const override;
  bool needs_poll() const override { return true; }
  int descriptor() const override { return poll_.get(); }
  void service(std::uint32_t events) override;
  Contact check_contact(TimePoint now) override;
  bool finish() override;
  void disconnect() override;

 private:
  // Number and length, both 32 bits, least significant byte first. A block without bytes is a sign
  // of life on its stripe; its number is ignored.
  using Header = std::array<std::byte, 8>;
  struct Stripe {
    std::unique_ptr<TcpLink> link;
    Header header{};  // Of the block that comes next.
    std::size_t header_bytes = 0;
    std::uint32_t number = 0;
    std::uint32_t left_bytes = 0;
    Status ended;                     // Why the stripe has ended; ok while it has not.
    std::size_t sign_left_bytes = 0;  // To be written before the next block.
    std::uint64_t given_bytes = 0;    // Of blocks; raised so as to stay close to the others'.

    bool has_header() const { return header_bytes == sizeof(Header); }
    bool can_read_header() const { return ended.ok() && !has_header() && link->readable(); }
  };
  // The block that is being written: it must be ended before the next one begins.
  struct Output {
    Stripe* stripe = nullptr;
    Header header{};
    std::size_t header_bytes = 0;  // Written so far.
    std::size_t left_bytes = 0;
  };

  explicit StripedLink(std::vector<std::unique_ptr<TcpLink>> stripes);
  Status open_poll();
  void begin_block(Stripe& stripe, std::size_t bytes);
  Result<std::size_t> write_block(std::span<const ConstByteSpan> pieces, std::size_t skip);
  static bool write_sign(Stripe& stripe);
  Stripe* next_writable();
  Status look_for_next();
  Status read_header(Stripe& stripe);
  Status take_header(Stripe& stripe) const;
  Status end_of_stream() const;

  std::string name_;
  std::vector<Stripe> stripes_;
  FileDescriptor poll_;
  Output output_;
  std::uint32_t next_output_ = 0;  // Numbers of blocks.
  std::uint32_t next_input_ = 0;
  Stripe* input_ = nullptr;               // Has the block that is being read.
  std::optional<TimePoint> quiet_since_;  // Since when the others bring nothing, after one ended.
  bool gives_up_ = false;                 // They have brought nothing for too long.
};

}  // namespace stretto::transport::tcp
