// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/codec/header.h"

#include <cstring>
#include <iterator>

#include "stretto/base/content_hash.h"

namespace stretto::codec {
namespace {

const char* kind_name(std::uint8_t kind) {
  constexpr const char* kGone = "a codec that is gone";
  constexpr const char* kNames[] = {"no codec", "dense",   "top_k",   "threshold", kGone,
                                    "int8",     "one_bit", kGone,     "rows",      kGone,
                                    "f16",      "bf16",    "nonzeros"};
  return kind < std::size(kNames) ? kNames[kind] : "an unknown codec";
}

// The checksum of the whole message except for the field that holds it.
std::uint64_t checksum(const Header& header, std::span<const std::byte> payload) {
  const auto bytes = std::as_bytes(std::span(&header, 1));
  return content_hash(payload, content_hash(bytes.first(offsetof(Header, checksum))));
}

}  // namespace

std::uint32_t settings_of(const std::string& name) {
  return static_cast<std::uint32_t>(content_hash(std::as_bytes(std::span(name))));
}

void seal(Header header, std::span<std::byte> message) {
  header.checksum = checksum(header, message.subspan(sizeof(Header)));
  std::memcpy(message.data(), &header, sizeof(Header));
}

void name_rank(std::optional<Rank> rank, std::span<std::byte> payload) {
  const std::int32_t number = rank ? rank->value() + 1 : 0;
  if (payload.size() >= sizeof(number)) std::memcpy(payload.data(), &number, sizeof(number));
}

std::optional<Rank> named_rank(std::span<const std::byte> payload) {
  std::int32_t number = 0;
  if (payload.size() >= sizeof(number)) std::memcpy(&number, payload.data(), sizeof(number));
  return number > 0 ? std::optional(Rank(number - 1)) : std::nullopt;
}

Result<Header> read_header(std::span<const std::byte> bytes, const Expected& expected) {
  if (bytes.size() < sizeof(Header)) {
    return status_of(StatusCode::protocol,
                     "a compressed message ends after {} bytes, in its header", bytes.size());
  }
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(Header));
  if (header.magic != Header::kMagic) {
    return Status(StatusCode::protocol,
                  "bytes that are no compressed message where one was expected");
  }
  if (header.version != Header::kVersion) {
    return status_of(StatusCode::mismatch,
                     "a compressed message of version {}, where this rank speaks version {}",
                     header.version, Header::kVersion);
  }
  if (header.kind != expected.kind ||
      header.settings != (settings_of(expected.name) ^ expected.context_hash)) {
    return status_of(StatusCode::mismatch,
                     "a message of {}, where this rank uses '{}'; give all ranks the same codec",
                     header.kind == expected.kind ? "other settings" : kind_name(header.kind),
                     expected.name);
  }
  const auto step = static_cast<std::uint32_t>(expected.step);
  if (header.count != expected.count || header.step != step) {
    return status_of(StatusCode::mismatch,
                     "a message of {} elements in step {}, where this rank has {} in step {}",
                     header.count, header.step + 1, expected.count, step + 1);
  }
  return header;
}

Status check_payload(std::span<const std::byte> bytes, const Header& header, std::size_t length) {
  if (bytes.size() - sizeof(Header) < length) {
    return status_of(StatusCode::protocol, "a message of {} values of {} in {} bytes",
                     header.values, header.count, bytes.size());
  }
  if (header.checksum == checksum(header, bytes.subspan(sizeof(Header), length))) return {};
  return {StatusCode::protocol, "a compressed message whose checksum is wrong"};
}

}  // namespace stretto::codec
