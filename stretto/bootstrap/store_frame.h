// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "stretto/base/status.h"
#include "stretto/bootstrap/store_request.h"

namespace stretto::bootstrap {

// The frames between a client and our store server after the handshake;
// docs/internals/wire_format.md draws them. A client may send several requests at once; replies
// come in the order of the requests.
inline constexpr std::size_t kStoreRequestHeadBytes = 20;
inline constexpr std::size_t kStoreReplyHeadBytes = 16;

// A whole frame, ready to be sent. The caller has checked the limits of store.h.
std::string encode_store_request(const StoreRequest& request);
// A failure travels as a sentence and as one of the codes refused and invalid_argument.
std::string encode_store_reply(const Result<StoreReply>& reply);

// The first request of a stream, as views of the stream, and its size.
struct ReceivedStoreRequest {
  StoreRequest request = {};
  std::size_t bytes = 0;
};
// Decodes the first request of `stream`. Empty if it is incomplete. Fails with protocol as soon as
// the head exceeds the limits of store.h or makes no sense.
Result<std::optional<ReceivedStoreRequest>> decode_store_request(std::string_view stream);

// The head of a reply; `text_bytes` bytes follow it: the value, or a sentence.
struct StoreReplyHead {
  StatusCode outcome = StatusCode::ok;
  std::size_t text_bytes = 0;
  std::int64_t number = 0;
};
// `bytes` are exactly a head. Fails with protocol if it makes no sense.
Result<StoreReplyHead> decode_store_reply_head(std::string_view bytes);
// The reply itself, once its text has come.
Result<StoreReply> finish_store_reply(const StoreReplyHead& head, std::string text);

}  // namespace stretto::bootstrap
