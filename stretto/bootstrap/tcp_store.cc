// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/tcp_store.h"

#include <array>
#include <span>

#include "stretto/bootstrap/socket.h"
#include "stretto/bootstrap/store_client.h"
#include "stretto/bootstrap/store_frame.h"

namespace stretto::bootstrap {
namespace {

class TcpStore : public StoreClient {
 public:
  explicit TcpStore(const TcpStoreOptions& options)
      : StoreClient({"the store of " + options.owner, options.host, options.port}),
        key_(options.key),
        self_(options.self) {}

 private:
  Status greet(int fd, Deadline deadline) override {
    return handshake_as_client(fd, key_, Purpose::store, self_, deadline).status();
  }

  Result<StoreReply> exchange(int fd, const StoreRequest& request, Deadline deadline) override {
    const std::string frame = encode_store_request(request);
    STRETTO_RETURN_IF_ERROR(write_all(fd, std::as_bytes(std::span(frame)), deadline));
    std::array<std::byte, kStoreReplyHeadBytes> head_bytes{};
    STRETTO_RETURN_IF_ERROR(read_exactly(fd, head_bytes, deadline));
    const Result<StoreReplyHead> head = decode_store_reply_head(head_bytes);
    if (!head.ok()) return head.status();
    std::string text(head.value().text_bytes, '\0');
    STRETTO_RETURN_IF_ERROR(read_exactly(fd, std::as_writable_bytes(std::span(text)), deadline));
    return finish_store_reply(head.value(), std::move(text));
  }

  const JobKey key_;
  const Identity self_;
};

}  // namespace

Result<std::unique_ptr<Store>> connect_tcp_store(const TcpStoreOptions& options,
                                                 Deadline deadline) {
  auto store = std::make_unique<TcpStore>(options);
  STRETTO_RETURN_IF_ERROR(store->open(deadline));
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace stretto::bootstrap
