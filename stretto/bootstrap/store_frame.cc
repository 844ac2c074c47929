// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/store_frame.h"

#include <algorithm>
#include <array>

#include "stretto/base/check.h"
#include "stretto/bootstrap/little_endian.h"
#include "stretto/bootstrap/store.h"

namespace stretto::bootstrap {
namespace {

template <std::size_t kBytes>
std::string to_string(const std::array<std::byte, kBytes>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool zero(ConstByteSpan bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](std::byte byte) { return byte == std::byte(); });
}

}  // namespace

std::string encode_store_request(StoreOperation operation, std::string_view key,
                                 std::string_view value) {
  std::array<std::byte, kStoreRequestHeadBytes> head{};
  head[0] = static_cast<std::byte>(operation);
  store_little_endian(head.data() + 2, static_cast<std::uint16_t>(key.size()));
  store_little_endian(head.data() + 4, static_cast<std::uint32_t>(value.size()));
  return to_string(head).append(key).append(value);
}

std::string encode_store_reply(bool ok, std::string_view content) {
  std::array<std::byte, kStoreReplyHeadBytes> head{};
  head[0] = ok ? std::byte{0} : std::byte{1};
  store_little_endian(head.data() + 4, static_cast<std::uint32_t>(content.size()));
  return to_string(head).append(content);
}

Result<StoreRequestHead> decode_store_request_head(ConstByteSpan bytes) {
  STRETTO_CHECK(bytes.size() == kStoreRequestHeadBytes, "{} bytes", bytes.size());
  const auto operation = std::to_integer<unsigned>(bytes[0]);
  const std::size_t key_bytes = load_little_endian<std::uint16_t>(bytes.data() + 2);
  const std::size_t value_bytes = load_little_endian<std::uint32_t>(bytes.data() + 4);
  const bool set = operation == static_cast<unsigned>(StoreOperation::set);
  const bool get = operation == static_cast<unsigned>(StoreOperation::get);
  if ((!set && !get) || !zero(bytes.subspan(1, 1)) || key_bytes == 0 || key_bytes > kMaxKeyBytes ||
      value_bytes > (set ? kMaxValueBytes : 0)) {
    return status_of(StatusCode::protocol,
                     "no such store request: operation {}, a key of {} and a value of {} bytes",
                     operation, key_bytes, value_bytes);
  }
  return StoreRequestHead{static_cast<StoreOperation>(operation), key_bytes, value_bytes};
}

Result<StoreReplyHead> decode_store_reply_head(ConstByteSpan bytes) {
  STRETTO_CHECK(bytes.size() == kStoreReplyHeadBytes, "{} bytes", bytes.size());
  const auto outcome = std::to_integer<unsigned>(bytes[0]);
  const std::size_t length = load_little_endian<std::uint32_t>(bytes.data() + 4);
  if (outcome > 1 || !zero(bytes.subspan(1, 3)) || length > kMaxValueBytes) {
    return status_of(StatusCode::protocol, "no such store reply: outcome {}, {} bytes", outcome,
                     length);
  }
  return StoreReplyHead{outcome == 0, length};
}

}  // namespace stretto::bootstrap
