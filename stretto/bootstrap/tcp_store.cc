// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/tcp_store.h"

#include <array>
#include <span>

#include "stretto/bootstrap/connection_pool.h"
#include "stretto/bootstrap/socket.h"
#include "stretto/bootstrap/store_frame.h"

namespace stretto::bootstrap {
namespace {

Result<FileDescriptor> connect(const TcpStoreOptions& options, Deadline deadline) {
  Result<FileDescriptor> fd = connect_tcp(options.host, options.port, deadline);
  if (!fd.ok()) return fd;
  const Result<Identity> server =
      handshake_as_client(fd->get(), options.key, Purpose::store, options.self, deadline);
  if (!server.ok()) return server.status();
  return fd;
}

Result<std::string> exchange(int fd, std::string_view request, Deadline deadline) {
  STRETTO_RETURN_IF_ERROR(write_all(fd, std::as_bytes(std::span(request)), deadline));
  std::array<std::byte, kStoreReplyHeadBytes> head_bytes{};
  STRETTO_RETURN_IF_ERROR(read_exactly(fd, head_bytes, deadline));
  const Result<StoreReplyHead> head = decode_store_reply_head(head_bytes);
  if (!head.ok()) return head.status();
  std::string content(head.value().bytes, '\0');
  STRETTO_RETURN_IF_ERROR(read_exactly(fd, std::as_writable_bytes(std::span(content)), deadline));
  if (!head.value().ok) return Status(StatusCode::refused, std::move(content));
  return content;
}

class TcpStore : public Store {
 public:
  explicit TcpStore(const TcpStoreOptions& options)
      : place_("launcher at " + format_host_port(options.host, options.port)),
        pool_([options](Deadline deadline) { return connect(options, deadline); }) {}

  Status open(Deadline deadline) {
    Result<FileDescriptor> first = pool_.take(deadline);
    if (!first.ok()) return first.status().with_context("the store of the " + place_);
    pool_.give_back(std::move(*first));
    return {};
  }

  Status set(std::string_view key, std::string_view value, Deadline deadline) override {
    STRETTO_RETURN_IF_ERROR(check_store_limits(key, value));
    return request(encode_store_request(StoreOperation::set, key, value), deadline)
        .status()
        .with_context(fmt::format("setting \"{}\" in the store of the {}", key, place_));
  }

  Result<std::string> get(std::string_view key, Deadline deadline) override {
    STRETTO_RETURN_IF_ERROR(check_store_limits(key, {}));
    Result<std::string> value =
        request(encode_store_request(StoreOperation::get, key, {}), deadline);
    if (value.ok()) return value;
    return value.status().with_context(
        fmt::format("waiting for \"{}\" in the store of the {}", key, place_));
  }

  std::string describe() const override { return place_; }

 private:
  Result<std::string> request(const std::string& frame, Deadline deadline) {
    Result<FileDescriptor> connection = pool_.take(deadline);
    if (!connection.ok()) return connection.status();
    Result<std::string> reply = exchange(connection->get(), frame, deadline);
    if (reply.ok()) pool_.give_back(std::move(*connection));
    return reply;
  }

  std::string place_;
  ConnectionPool pool_;
};

}  // namespace

Result<std::unique_ptr<Store>> connect_tcp_store(const TcpStoreOptions& options,
                                                 Deadline deadline) {
  auto store = std::make_unique<TcpStore>(options);
  STRETTO_RETURN_IF_ERROR(store->open(deadline));
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace stretto::bootstrap
