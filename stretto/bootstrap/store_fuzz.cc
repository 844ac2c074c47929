// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A client may send any bytes to a store's server, a server to its client, and whoever can write to
// its file to a FileStore. What a decoder accepts must be what the encoder writes, and no store may
// grow beyond its limits.
// Sources: store_frame.cc store_page.cc store_contents.cc store.cc file_log.cc

#include <cstdlib>
#include <memory>

#include "stretto/bootstrap/file_log.h"
#include "stretto/bootstrap/store.h"
#include "stretto/bootstrap/store_contents.h"
#include "stretto/bootstrap/store_frame.h"
#include "stretto/bootstrap/store_page.h"

namespace {

using namespace stretto::bootstrap;
using stretto::Result;
using stretto::StatusCode;

constexpr std::size_t kCapacityBytes = 100 * 1024;

void require(bool condition) {
  if (!condition) std::abort();
}

void fuzz_client(std::string_view stream) {
  if (stream.size() < kStoreReplyHeadBytes) return;
  const Result<StoreReplyHead> head =
      decode_store_reply_head(stream.substr(0, kStoreReplyHeadBytes));
  if (!head.ok()) return require(head.status().code() == StatusCode::protocol);
  require(head.value().text_bytes <= kMaxValueBytes);
  const std::string text(stream.substr(kStoreReplyHeadBytes, head.value().text_bytes));
  const Result<std::vector<std::string>> keys = keys_of_page(text, {});
  require(keys.ok() || keys.status().code() == StatusCode::protocol);
  const Result<StoreReply> reply = finish_store_reply(head.value(), text);
  require(reply.ok() == (head.value().outcome == StatusCode::ok));
  if (reply.ok() && text.size() == head.value().text_bytes) {
    require(encode_store_reply(reply) == stream.substr(0, kStoreReplyHeadBytes + text.size()));
  }
}

// The server answers every request of a stream. The client must understand each answer.
void fuzz_server(std::string_view stream) {
  StoreContents contents(std::make_shared<ByteBudget>(kCapacityBytes));
  while (true) {
    const Result<std::optional<ReceivedStoreRequest>> received = decode_store_request(stream);
    if (!received.ok()) return require(received.status().code() == StatusCode::protocol);
    if (!received.value()) return;
    const auto& [request, bytes] = *received.value();
    require(encode_store_request(request) == stream.substr(0, bytes));
    require(check_store_limits(request).ok());
    const Result<std::optional<StoreReply>> reply = contents.answer(request);
    if (!reply.ok()) {
      fuzz_client(encode_store_reply(reply.status()));
    } else if (reply.value()) {
      fuzz_client(encode_store_reply(*reply.value()));
    } else {
      require(contents.find(request.key) == nullptr);
    }
    const std::string* value = contents.find(request.key);
    require(value == nullptr || request.key.size() + value->size() <= kCapacityBytes);
    stream.remove_prefix(bytes);
  }
}

void fuzz_file(std::string_view log) {
  while (true) {
    const Result<std::optional<FileRecord>> decoded = decode_file_record(log);
    if (!decoded.ok()) return require(decoded.status().code() == StatusCode::protocol);
    if (!decoded.value()) return;
    const FileRecord& record = *decoded.value();
    require(encode_file_record(record.key, record.value) == log.substr(0, record.bytes));
    log.remove_prefix(record.bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      fuzz_server(bytes);
      break;
    case 1:
      fuzz_client(bytes);
      break;
    default:
      fuzz_file(bytes);
  }
  return 0;
}
