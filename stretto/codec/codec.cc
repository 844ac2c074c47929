// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/codec/codec.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "stretto/base/check.h"
#include "stretto/base/content_hash.h"
#include "stretto/codec/header.h"
#include "stretto/codec/scratch.h"
#include "stretto/kernel/select.h"

namespace stretto {
namespace {

using codec::Header;

std::uint32_t hash_of(const std::string& name) {
  return static_cast<std::uint32_t>(content_hash(std::as_bytes(std::span(name))));
}

// Of everything but itself.
std::uint64_t checksum(const Header& header, std::span<const std::byte> payload) {
  const auto bytes = std::as_bytes(std::span(&header, 1));
  return content_hash(payload, content_hash(bytes.first(offsetof(Header, checksum))));
}

}  // namespace

const char* codec::kind_name(std::uint8_t kind) {
  constexpr const char* kNames[] = {"no codec", "dense", "top_k",  "threshold",
                                    "random_k", "int8",  "one_bit"};
  return kind < std::size(kNames) ? kNames[kind] : "an unknown codec";
}

std::optional<std::size_t> Codec::message_bytes(std::size_t count, std::uint64_t step) const {
  const auto values = values_of(count, step);
  if (!values) return std::nullopt;
  return sizeof(Header) + payload_bytes(count, *values);
}

std::size_t Codec::max_message_bytes(std::size_t count) const {
  // Indices take most space where they are half of all; values where all are sent.
  return sizeof(Header) + payload_bytes(count, count) + payload_bytes(count, count / 2);
}

std::size_t Codec::encode(const codec::Encoding& encoding, codec::Scratch& scratch,
                          std::vector<std::byte>& out) const {
  const std::span<float> carry = encoding.carry;
  STRETTO_CHECK(carry.size() == encoding.gradient.size() && carry.size() < (std::size_t{1} << 32),
                "{} elements of a gradient, {} carried", encoding.gradient.size(), carry.size());
  STRETTO_CHECK(encoding.cleared.empty() || encoding.cleared.size() == carry.size(),
                "{} elements to be cleared, {} carried", encoding.cleared.size(), carry.size());
  std::uint32_t no_hint = 0;
  std::uint32_t* const hint = encoding.hint != nullptr ? encoding.hint : &no_hint;
  const Search wanted = search(carry.size(), encoding.position, *hint);
  const std::span<std::uint32_t> indices = codec::room(scratch.indices, wanted.room);
  const std::span<float> values = codec::room(scratch.values, wanted.room);
  kernel::Found found =
      kernel::add_and_take_at_least(carry, encoding.gradient, wanted.limit, indices, values);
  const bool is_finite = found.greatest < kernel::kInfinityBits;
  if (!is_finite && encoding.non_finite != NonFinite::send) {
    codec::put_back(carry, scratch, std::min(found.count, wanted.room));
    kernel::clear_non_finite(carry);
    found = kernel::take_at_least(carry, wanted.limit, indices, values);
  }
  Header header;
  header.kind = static_cast<std::uint8_t>(kind_);
  header.settings = hash_of(name_);
  header.step = static_cast<std::uint32_t>(encoding.position.step);
  header.count = carry.size();
  const std::size_t begin = out.size();
  out.resize(begin + sizeof(Header));
  if (!is_finite && encoding.non_finite == NonFinite::stop) {
    codec::put_back(carry, scratch, std::min(found.count, wanted.room));
    header.flags = Header::kStopped;
    // As long as any other, if others are always as long.
    const auto bytes = message_bytes(carry.size(), encoding.position.step);
    if (bytes) out.resize(begin + *bytes);
    header.values = bytes ? *values_of(carry.size(), encoding.position.step) : 0;
  } else {
    header.values = write({.carry = carry,
                           .position = encoding.position,
                           .hint = hint,
                           .found = found.count,
                           .greatest = found.greatest,
                           .scratch = scratch,
                           .cleared = encoding.cleared},
                          out);
  }
  if (!is_finite && encoding.non_finite == NonFinite::send) kernel::clear_non_finite(carry);
  header.checksum =
      checksum(header, std::span<const std::byte>(out).subspan(begin + sizeof(Header)));
  std::memcpy(out.data() + begin, &header, sizeof(Header));
  return header.values;
}

// Whether `bytes` begin with the header of a message of ours.
Status Codec::check(std::span<const std::byte> bytes, const codec::Position& position,
                    std::size_t count) const {
  if (bytes.size() < sizeof(Header)) {
    return status_of(StatusCode::protocol,
                     "a compressed message ends after {} bytes, in its header", bytes.size());
  }
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(Header));
  if (header.magic != Header::kMagic) {
    return {StatusCode::protocol, "bytes that are no compressed message where one was expected"};
  }
  if (header.version != Header::kVersion) {
    return status_of(StatusCode::mismatch,
                     "a compressed message of version {}, where this rank speaks version {}",
                     header.version, Header::kVersion);
  }
  if (header.kind != static_cast<std::uint8_t>(kind_) || header.settings != hash_of(name_)) {
    return status_of(StatusCode::mismatch,
                     "a message of {}, where this rank uses '{}'; give all ranks the same codec",
                     header.kind == static_cast<std::uint8_t>(kind_)
                         ? "other settings"
                         : codec::kind_name(header.kind),
                     name_);
  }
  if (header.count != count || header.step != static_cast<std::uint32_t>(position.step)) {
    return status_of(StatusCode::mismatch,
                     "a message of {} elements in step {}, where this rank has {} in step {}",
                     header.count, header.step, count, static_cast<std::uint32_t>(position.step));
  }
  const auto values = values_of(count, position.step);
  const bool stopped = header.flags == Header::kStopped;
  if (header.values > count || (values && header.values != *values) ||
      (header.flags != 0 && !stopped) ||
      bytes.size() - sizeof(Header) < payload_bytes(count, header.values)) {
    return status_of(StatusCode::protocol, "a message of {} values of {} in {} bytes",
                     header.values, count, bytes.size());
  }
  const auto payload = bytes.subspan(sizeof(Header), payload_bytes(count, header.values));
  if (header.checksum != checksum(header, payload)) {
    return {StatusCode::protocol, "a compressed message whose checksum is wrong"};
  }
  if (stopped) {
    return {StatusCode::invalid_argument,
            "the gradient holds infinity or NaN, and NonFinite::stop is set"};
  }
  return {};
}

Result<std::size_t> Codec::decode_add(std::span<const std::byte> bytes,
                                      const codec::Position& position, codec::Scratch& scratch,
                                      std::span<float> sums) const {
  STRETTO_RETURN_IF_ERROR(check(bytes, position, sums.size()));
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(Header));
  const std::size_t length = payload_bytes(sums.size(), header.values);
  const Payload payload{bytes.subspan(sizeof(Header), length), header.values, position, scratch};
  if (!read(payload, sums)) {
    return Status(StatusCode::protocol, "a compressed message that no codec makes");
  }
  return sizeof(Header) + length;
}

}  // namespace stretto
