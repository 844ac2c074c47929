// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/codec/codec.h"

#include <algorithm>

#include "stretto/base/check.h"
#include "stretto/codec/finite.h"
#include "stretto/codec/header.h"
#include "stretto/codec/scratch.h"
#include "stretto/kernel/select.h"

namespace stretto {

using codec::Header;

namespace {
constexpr const char* kNoMessage = "a compressed message that no codec makes";
}  // namespace

std::optional<std::size_t> Codec::message_bytes(std::size_t count, std::uint64_t step) const {
  const auto values = values_of(count, step);
  if (!values) return std::nullopt;
  return extract_bytes(count, *values);
}

std::size_t Codec::extract_bytes(std::size_t count, std::size_t elements) const {
  return sizeof(Header) + payload_bytes(count, elements);
}

std::size_t Codec::max_message_bytes(std::size_t count) const {
  // The longest indices are those of half of all elements, the longest values those of all
  // elements.
  return sizeof(Header) + payload_bytes(count, count) + payload_bytes(count, count / 2);
}

Header Codec::header_of(std::size_t count, const codec::Position& position) const {
  Header header;
  header.kind = static_cast<std::uint8_t>(kind_);
  header.settings = codec::settings_of(name()) ^ position.context_hash;
  header.step = static_cast<std::uint32_t>(position.step);
  header.count = count;
  return header;
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
    codec::clear_non_finite(carry);
    found = kernel::take_at_least(carry, wanted.limit, indices, values);
  }
  Header header = header_of(carry.size(), encoding.position);
  const std::size_t begin = out.size();
  out.resize(begin + sizeof(Header));
  if (!is_finite && encoding.non_finite == NonFinite::stop) {
    codec::put_back(carry, scratch, std::min(found.count, wanted.room));
    header.flags = Header::kStopped;
    // As long as other messages if these have a fixed length; else with room for the number of a
    // rank.
    header.values = values_of(carry.size(), encoding.position.step)
                        .value_or(std::min<std::size_t>(1, carry.size()));
    out.resize(out.size() + payload_bytes(carry.size(), header.values));
    codec::name_rank(encoding.stopped_by, std::span(out).subspan(begin + sizeof(Header)));
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
  if (!is_finite && encoding.non_finite == NonFinite::send) codec::clear_non_finite(carry);
  codec::seal(header, std::span(out).subspan(begin));
  return header.values;
}

// `bytes` may be any bytes.
Result<Codec::Payload> Codec::open(std::span<const std::byte> bytes,
                                   const codec::Position& position, codec::Scratch& scratch,
                                   std::size_t count) const {
  STRETTO_ASSIGN_OR_RETURN(const Header header,
                           codec::read_header(bytes, {.kind = static_cast<std::uint8_t>(kind_),
                                                      .name = name(),
                                                      .count = count,
                                                      .step = position.step,
                                                      .context_hash = position.context_hash}));
  const auto values = values_of(count, position.step);
  const bool stopped = header.flags == Header::kStopped;
  if (header.values > count || (values && header.values != *values) ||
      (header.flags != 0 && !stopped)) {
    return status_of(StatusCode::protocol, "a message of {} values of {}, with flags {}",
                     header.values, count, header.flags);
  }
  const std::size_t length = payload_bytes(count, header.values);
  STRETTO_RETURN_IF_ERROR(codec::check_payload(bytes, header, length));
  if (stopped) {
    return Status(StatusCode::invalid_argument,
                  "the gradient holds infinity or NaN, and NonFinite::stop is set",
                  codec::named_rank(bytes.subspan(sizeof(Header), length)));
  }
  return Payload{bytes.subspan(sizeof(Header), length), count, header.values, scratch};
}

Result<std::size_t> Codec::decode_add(std::span<const std::byte> bytes,
                                      const codec::Position& position, codec::Scratch& scratch,
                                      std::span<float> sums) const {
  STRETTO_ASSIGN_OR_RETURN(const Payload payload, open(bytes, position, scratch, sums.size()));
  if (!read(payload, sums)) return Status(StatusCode::protocol, kNoMessage);
  return sizeof(Header) + payload.bytes.size();
}

Result<std::size_t> Codec::check(std::span<const std::byte> bytes, const codec::Position& position,
                                 codec::Scratch& scratch, std::size_t count) const {
  STRETTO_ASSIGN_OR_RETURN(const Payload payload, open(bytes, position, scratch, count));
  return sizeof(Header) + payload.bytes.size();
}

void Codec::add_section(std::span<const std::byte> message, std::size_t count, std::size_t first,
                        std::span<float> sums) const {
  read_section(message.subspan(sizeof(Header)), count, first, sums);
}

void Codec::encode_extract(const codec::Extract& extract, std::size_t count,
                           const codec::Position& position, std::span<std::byte> message) const {
  Header header = header_of(count, position);
  header.values = extract.has_all() ? count : extract.indices.size();
  STRETTO_CHECK(message.size() == extract_bytes(count, header.values),
                "a message of '{}' has another length than {}", name(), message.size());
  write_extract(extract, count, message.subspan(sizeof(Header)));
  codec::seal(header, message);
}

Result<codec::Extract> Codec::decode_extract(std::span<const std::byte> bytes,
                                             const codec::Position& position,
                                             codec::Scratch& scratch, std::size_t count) const {
  STRETTO_ASSIGN_OR_RETURN(const Payload payload, open(bytes, position, scratch, count));
  codec::Extract extract;
  if (!read_extract(payload, extract)) return Status(StatusCode::protocol, kNoMessage);
  return extract;
}

void Codec::read_section(std::span<const std::byte>, std::size_t, std::size_t,
                         std::span<float>) const {
  STRETTO_CHECK(false, "'{}' has no sections", name());
}

void Codec::write_extract(const codec::Extract&, std::size_t, std::span<std::byte>) const {
  STRETTO_CHECK(false, "'{}' has no extraction", name());
}

bool Codec::read_extract(const Payload&, codec::Extract&) const { return false; }

}  // namespace stretto
