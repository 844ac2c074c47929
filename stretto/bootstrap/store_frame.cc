// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/store_frame.h"

#include "stretto/base/check.h"
#include "stretto/base/little_endian.h"
#include "stretto/base/printable.h"
#include "stretto/bootstrap/store.h"

namespace stretto::bootstrap {
namespace {

// The outcome of a request. The numbers are part of the protocol. Zeros follow this number, and
// that of an operation, so each is read and written as a longer one.
enum class Outcome : std::uint8_t { done = 0, refused = 1, invalid_argument = 2 };

Outcome outcome_of(const Status& status) {
  if (status.ok()) return Outcome::done;
  return status.code() == StatusCode::invalid_argument ? Outcome::invalid_argument
                                                       : Outcome::refused;
}

struct RequestHead {
  unsigned operation = 0;
  std::size_t key_bytes = 0;
  std::size_t value_bytes = 0;
  std::size_t expected_bytes = 0;
  std::int64_t amount = 0;

  std::size_t frame_bytes() const {
    return kStoreRequestHeadBytes + key_bytes + value_bytes + expected_bytes;
  }
};

// A field that an operation does not use must be empty, as it may have a meaning in another
// version.
bool makes_sense(const RequestHead& head) {
  constexpr auto kFirst = static_cast<unsigned>(StoreOperation::set);
  constexpr auto kLast = static_cast<unsigned>(StoreOperation::will);
  if (head.operation < kFirst || head.operation > kLast) return false;
  const auto operation = static_cast<StoreOperation>(head.operation);
  const bool compares = operation == StoreOperation::compare_set;
  const bool lists = operation == StoreOperation::list_keys;
  const bool wills = operation == StoreOperation::will;
  const bool has_value =
      compares || wills || operation == StoreOperation::set || operation == StoreOperation::append;
  const std::size_t expected_max = compares ? kMaxValueBytes : lists || wills ? kMaxKeyBytes : 0;
  return head.key_bytes >= (lists ? 0 : 1) && head.key_bytes <= kMaxKeyBytes &&
         head.value_bytes <= (has_value ? kMaxValueBytes : 0) &&
         head.expected_bytes <= expected_max &&
         (head.amount == 0 || operation == StoreOperation::add);
}

Result<RequestHead> decode_head(std::string_view bytes) {
  const RequestHead head{
      .operation = load_little_endian<std::uint16_t>(bytes),
      .key_bytes = load_little_endian<std::uint16_t>(bytes, 2),
      .value_bytes = load_little_endian<std::uint32_t>(bytes, 4),
      .expected_bytes = load_little_endian<std::uint32_t>(bytes, 8),
      .amount = load_little_endian<std::int64_t>(bytes, 12),
  };
  if (makes_sense(head)) return head;
  return status_of(StatusCode::protocol,
                   "no such store request: operation {}, a key of {}, a value of {} and an "
                   "expected value of {} bytes",
                   head.operation, head.key_bytes, head.value_bytes, head.expected_bytes);
}

}  // namespace

std::string encode_store_request(const StoreRequest& request) {
  std::string frame;
  append_little_endian(frame, static_cast<std::uint16_t>(request.operation));
  append_little_endian(frame, static_cast<std::uint16_t>(request.key.size()));
  append_little_endian(frame, static_cast<std::uint32_t>(request.value.size()));
  append_little_endian(frame, static_cast<std::uint32_t>(request.expected.size()));
  append_little_endian(frame, request.amount);
  return frame.append(request.key).append(request.value).append(request.expected);
}

std::string encode_store_reply(const Result<StoreReply>& reply) {
  const Status status = reply.status();
  const std::string_view text = reply.ok() ? reply.value().value : status.message();
  std::string frame;
  append_little_endian(frame, static_cast<std::uint32_t>(outcome_of(status)));
  append_little_endian(frame, static_cast<std::uint32_t>(text.size()));
  append_little_endian(frame, reply.ok() ? reply.value().number : 0);
  return frame.append(text);
}

Result<std::optional<ReceivedStoreRequest>> decode_store_request(std::string_view stream) {
  if (stream.size() < kStoreRequestHeadBytes) return std::optional<ReceivedStoreRequest>();
  STRETTO_ASSIGN_OR_RETURN(const auto head, decode_head(stream));
  if (stream.size() < head.frame_bytes()) return std::optional<ReceivedStoreRequest>();
  const std::string_view texts = stream.substr(kStoreRequestHeadBytes);
  const StoreRequest request{
      .operation = static_cast<StoreOperation>(head.operation),
      .key = texts.substr(0, head.key_bytes),
      .value = texts.substr(head.key_bytes, head.value_bytes),
      .expected = texts.substr(head.key_bytes + head.value_bytes, head.expected_bytes),
      .amount = head.amount,
  };
  return std::optional(ReceivedStoreRequest{request, head.frame_bytes()});
}

Result<StoreReplyHead> decode_store_reply_head(std::string_view bytes) {
  STRETTO_CHECK(bytes.size() == kStoreReplyHeadBytes, "{} bytes", bytes.size());
  const auto outcome = load_little_endian<std::uint32_t>(bytes);
  const std::size_t text_bytes = load_little_endian<std::uint32_t>(bytes, 4);
  constexpr auto kLast = static_cast<std::uint32_t>(Outcome::invalid_argument);
  if (outcome > kLast || text_bytes > kMaxValueBytes) {
    return status_of(StatusCode::protocol, "no such store reply: outcome {}, {} bytes", outcome,
                     text_bytes);
  }
  constexpr StatusCode kCodes[] = {StatusCode::ok, StatusCode::refused,
                                   StatusCode::invalid_argument};
  return StoreReplyHead{kCodes[outcome], text_bytes, load_little_endian<std::int64_t>(bytes, 8)};
}

Result<StoreReply> finish_store_reply(const StoreReplyHead& head, std::string text) {
  if (head.outcome != StatusCode::ok) return Status(head.outcome, printable(std::move(text)));
  return StoreReply{std::move(text), head.number};
}

}  // namespace stretto::bootstrap
