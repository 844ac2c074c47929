// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/tcp_store.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "stretto/base/owner_process.h"
#include "stretto/bootstrap/socket.h"
#include "stretto/bootstrap/store_client.h"
#include "stretto/bootstrap/store_frame.h"

namespace stretto::bootstrap {
namespace {

// The server reads nothing from a client that has unread replies. So many requests fit the buffers
// of the two sockets.
constexpr std::size_t kRequestsAtOnce = 64;

Status send_request(int fd, const StoreRequest& request, const WaitLimit& limit) {
  const std::string frame = encode_store_request(request);
  return write_all(fd, std::as_bytes(std::span(frame)), limit);
}

Result<StoreReply> read_reply(int fd, const WaitLimit& limit) {
  std::string head_bytes(kStoreReplyHeadBytes, '\0');
  STRETTO_RETURN_IF_ERROR(read_exactly(fd, std::as_writable_bytes(std::span(head_bytes)), limit));
  STRETTO_ASSIGN_OR_RETURN(const StoreReplyHead head, decode_store_reply_head(head_bytes));
  std::string text(head.text_bytes, '\0');
  STRETTO_RETURN_IF_ERROR(read_exactly(fd, std::as_writable_bytes(std::span(text)), limit));
  return finish_store_reply(head, std::move(text));
}

// A connection of its own. The server answers on it when the key is set, and executes the will when
// it ends.
class ConnectionWatch : public StoreWatch {
 public:
  ConnectionWatch(FileDescriptor connection, std::string key)
      : connection_(std::move(connection)), key_(std::move(key)) {}
  // shutdown(), because a forked child that still holds the connection would keep it open.
  ~ConnectionWatch() override {
    if (owner_process_.is_here()) (void)::shutdown(connection_.get(), SHUT_RDWR);
  }

  Status leave(std::string_view value, std::string_view revoked_by, const WaitLimit& limit) {
    const StoreRequest will{
        .operation = StoreOperation::will, .key = key_, .value = value, .expected = revoked_by};
    STRETTO_RETURN_IF_ERROR(check_store_limits(will));
    STRETTO_RETURN_IF_ERROR(send_request(connection_.get(), will, limit));
    return read_reply(connection_.get(), limit).status();
  }
  Status revoke(const WaitLimit& limit) override { return leave("", "", limit); }

  Result<std::optional<std::string>> look() override {
    if (found_) return found_;
    const Deadline soon = Deadline::after(std::chrono::seconds(5));
    // From now on the connection only waits for the key.
    if (!asked_) {
      asked_ = true;
      const StoreRequest get{.operation = StoreOperation::get, .key = key_};
      STRETTO_RETURN_IF_ERROR(send_request(connection_.get(), get, soon));
    }
    // With a passed deadline, wait_for() only looks.
    const Status readable = wait_for(connection_.get(), POLLIN, Deadline(TimePoint::min()));
    if (!readable.ok()) return std::optional<std::string>();
    STRETTO_ASSIGN_OR_RETURN(StoreReply reply, read_reply(connection_.get(), soon));
    found_ = std::move(reply.value);
    return found_;
  }

 private:
  const OwnerProcess owner_process_;
  FileDescriptor connection_;
  const std::string key_;
  bool asked_ = false;
  std::optional<std::string> found_;
};

class TcpStore : public StoreClient {
 public:
  explicit TcpStore(const TcpStoreOptions& options)
      : StoreClient({"the store of " + options.owner, options.host, options.port}),
        key_(options.key),
        self_(options.self) {}

  Result<std::unique_ptr<StoreWatch>> watch(const std::string& key, const Will& will,
                                            const WaitLimit& limit) override;
  Result<std::vector<std::string>> multi_get(std::span<const std::string> keys,
                                             const WaitLimit& limit) override;

 private:
  Status greet(int fd, const WaitLimit& limit) override {
    return handshake_as_client(fd, key_, Purpose::store, self_, limit).status();
  }

  Result<StoreReply> exchange(int fd, const StoreRequest& request,
                              const WaitLimit& limit) override {
    STRETTO_RETURN_IF_ERROR(send_request(fd, request, limit));
    return read_reply(fd, limit);
  }

  const JobKey key_;
  const Identity self_;
};

Result<std::unique_ptr<StoreWatch>> TcpStore::watch(const std::string& key, const Will& will,
                                                    const WaitLimit& limit) {
  STRETTO_ASSIGN_OR_RETURN(FileDescriptor fd, connect(limit));
  auto watch = std::make_unique<ConnectionWatch>(std::move(fd), key);
  STRETTO_RETURN_IF_ERROR(watch->leave(will.value, will.revoked_by, limit));
  return std::unique_ptr<StoreWatch>(std::move(watch));
}

// Sends many requests at once. Joining ranks ask for a note of each other rank, and a round trip
// for each would take most of the time. After a failure the connection is closed, as more replies
// may be on their way.
Result<std::vector<std::string>> TcpStore::multi_get(std::span<const std::string> keys,
                                                     const WaitLimit& limit) {
  const auto getting = [this](const std::string& key) {
    return fmt::format("waiting for \"{}\" in {}", key, describe());
  };
  for (const std::string& key : keys) {
    const Status fits = check_store_limits({.operation = StoreOperation::get, .key = key});
    if (!fits.ok()) return fits.with_context(getting(key));
  }
  STRETTO_ASSIGN_OR_RETURN(FileDescriptor connection, take_connection(limit));
  std::vector<std::string> values;
  while (values.size() < keys.size()) {
    const std::size_t end = std::min(keys.size(), values.size() + kRequestsAtOnce);
    std::string frames;
    for (const std::string& key : keys.subspan(values.size(), end - values.size())) {
      frames += encode_store_request({.operation = StoreOperation::get, .key = key});
    }
    Status got = write_all(connection.get(), std::as_bytes(std::span(frames)), limit);
    while (got.ok() && values.size() < end) {
      Result<StoreReply> reply = read_reply(connection.get(), limit);
      got = reply.status();
      if (got.ok()) values.push_back(std::move(reply->value));
    }
    if (!got.ok()) return got.with_context(getting(keys[values.size()]));
  }
  give_back(std::move(connection));
  return values;
}

}  // namespace

Result<std::unique_ptr<Store>> connect_tcp_store(const TcpStoreOptions& options,
                                                 const WaitLimit& limit) {
  auto store = std::make_unique<TcpStore>(options);
  STRETTO_RETURN_IF_ERROR(store->open(limit));
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace stretto::bootstrap
