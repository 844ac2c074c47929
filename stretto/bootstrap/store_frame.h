// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "stretto/base/status.h"
#include "stretto/base/view.h"

namespace stretto::bootstrap {

// What travels between a rank and the launcher's store after the handshake; docs/wire_format.md
// draws it. A client sends one request at a time and waits for its reply.
enum class StoreOperation : std::uint8_t { set = 1, get = 2 };

// The head of a request; the key and then the value follow it.
struct StoreRequestHead {
  StoreOperation operation = StoreOperation::get;
  std::size_t key_bytes = 0;
  std::size_t value_bytes = 0;  // 0 for get.
};
inline constexpr std::size_t kStoreRequestHeadBytes = 8;

// The head of a reply; the value, or a sentence, follows it.
struct StoreReplyHead {
  bool ok = false;
  std::size_t bytes = 0;
};
inline constexpr std::size_t kStoreReplyHeadBytes = 8;

// Whole frames, ready to be sent. The caller has checked the limits of store.h.
std::string encode_store_request(StoreOperation operation, std::string_view key,
                                 std::string_view value);
std::string encode_store_reply(bool ok, std::string_view content);

// Take exactly the bytes of a head. Fail with protocol if it asks for more than the limits of
// store.h, or makes no sense.
Result<StoreRequestHead> decode_store_request_head(ConstByteSpan bytes);
Result<StoreReplyHead> decode_store_reply_head(ConstByteSpan bytes);

}  // namespace stretto::bootstrap
