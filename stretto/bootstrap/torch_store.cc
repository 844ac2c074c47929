// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/torch_store.h"

#include <array>
#include <optional>
#include <span>
#include <string>

#include "stretto/base/little_endian.h"
#include "stretto/bootstrap/socket.h"
#include "stretto/bootstrap/store_client.h"
#include "stretto/bootstrap/store_contents.h"

namespace stretto::bootstrap {
namespace {

// PyTorch's numbers of the requests that are used here, as observed on the wire of PyTorch 2.13.
enum class TorchRequest : std::uint8_t {
  validate = 0,
  set = 1,
  compare_set = 2,
  get = 3,
  add = 4,
  check = 5,
  wait = 6,
  delete_key = 8,
  append = 9,
  ping = 13
};
constexpr std::uint32_t kValidationMagic = 0x3c85f7ce;
constexpr std::uint8_t kStopWaiting = 0;
constexpr std::uint8_t kReady = 0;
// The answer to a ping returns it. Any number will do: it only shows that a TCPStore answers.
constexpr std::uint32_t kPingNonce = 0x73747265;

// The bytes of a request.
class RequestFrame {
 public:
  explicit RequestFrame(TorchRequest request) { number(static_cast<std::uint8_t>(request)); }

  template <class T>
  RequestFrame& number(T value) {
    append_little_endian(bytes_, value);
    return *this;
  }
  RequestFrame& text(std::string_view text) {
    number(static_cast<std::uint64_t>(text.size()));
    bytes_.append(text);
    return *this;
  }
  // Adds a ping to a request that has no answer of its own, so that an answer comes.
  RequestFrame& then_ping() {
    return number(static_cast<std::uint8_t>(TorchRequest::ping)).number(kPingNonce);
  }

  Status send(int fd, const WaitLimit& limit) const {
    return write_all(fd, std::as_bytes(std::span(bytes_)), limit);
  }

 private:
  std::string bytes_;
};

template <class T>
Result<T> read(int fd, const WaitLimit& limit) {
  std::array<std::byte, sizeof(T)> bytes{};
  STRETTO_RETURN_IF_ERROR(read_exactly(fd, bytes, limit));
  return load_little_endian<T>(bytes.data());
}

Result<StoreReply> read_text(int fd, const WaitLimit& limit) {
  STRETTO_ASSIGN_OR_RETURN(const std::uint64_t length, read<std::uint64_t>(fd, limit));
  if (length > kMaxValueBytes) {
    return status_of(StatusCode::protocol,
                     "TCPStore holds a value of {} bytes, at most {} are ours", length,
                     kMaxValueBytes);
  }
  std::string text(length, '\0');
  STRETTO_RETURN_IF_ERROR(read_exactly(fd, std::as_writable_bytes(std::span(text)), limit));
  return StoreReply{.value = std::move(text)};
}

Result<StoreReply> read_number(int fd, const WaitLimit& limit) {
  STRETTO_ASSIGN_OR_RETURN(const std::int64_t number, read<std::int64_t>(fd, limit));
  return StoreReply{.number = number};
}

// Reads the answer to a frame that ends in a ping.
Result<StoreReply> read_ping(int fd, const WaitLimit& limit) {
  STRETTO_ASSIGN_OR_RETURN(const std::uint32_t nonce, read<std::uint32_t>(fd, limit));
  if (nonce == kPingNonce) return StoreReply{};
  return status_of(StatusCode::protocol, "no TCPStore of PyTorch answers there");
}

Result<StoreReply> wait(int fd, const StoreRequest& request, const WaitLimit& limit) {
  STRETTO_RETURN_IF_ERROR(
      RequestFrame(TorchRequest::wait).number(std::uint64_t{1}).text(request.key).send(fd, limit));
  STRETTO_ASSIGN_OR_RETURN(const std::uint8_t woken, read<std::uint8_t>(fd, limit));
  if (woken == kStopWaiting) return StoreReply{};
  return status_of(StatusCode::protocol, "TCPStore answered a wait with {}", woken);
}

Result<StoreReply> get(int fd, const StoreRequest& request, const WaitLimit& limit) {
  STRETTO_RETURN_IF_ERROR(wait(fd, request, limit).status());
  STRETTO_RETURN_IF_ERROR(RequestFrame(TorchRequest::get).text(request.key).send(fd, limit));
  return read_text(fd, limit);
}

Result<StoreReply> check(int fd, const StoreRequest& request, const WaitLimit& limit) {
  STRETTO_RETURN_IF_ERROR(
      RequestFrame(TorchRequest::check).number(std::uint64_t{1}).text(request.key).send(fd, limit));
  STRETTO_ASSIGN_OR_RETURN(const std::uint8_t ready, read<std::uint8_t>(fd, limit));
  return StoreReply{.number = ready == kReady ? 1 : 0};
}

Result<StoreReply> compare_set(int fd, const StoreRequest& request, const WaitLimit& limit) {
  STRETTO_RETURN_IF_ERROR(RequestFrame(TorchRequest::compare_set)
                              .text(request.key)
                              .text(request.expected)
                              .text(request.value)
                              .send(fd, limit));
  Result<StoreReply> reply = read_text(fd, limit);
  // For an absent key TCPStore answers with `expected`, as if that were its value.
  if (!reply.ok() || request.expected.empty() || reply->value != request.expected) return reply;
  STRETTO_ASSIGN_OR_RETURN(const StoreReply present, check(fd, request, limit));
  return present.number == 0 ? StoreReply{} : std::move(*reply);
}

// The value of a key; nothing if it is absent. Takes two requests, between which the key may be
// deleted. A single compare_set that changes nothing would wake clients that wait for the key.
Result<std::optional<std::string>> look_up(int fd, const StoreRequest& request,
                                           const WaitLimit& limit) {
  STRETTO_ASSIGN_OR_RETURN(const StoreReply present, check(fd, request, limit));
  if (present.number == 0) return std::optional<std::string>();
  STRETTO_ASSIGN_OR_RETURN(StoreReply old, get(fd, request, limit));
  return std::optional(std::move(old.value));
}

// Looks first, because TCPStore ends the connection, or itself, if the value is not a number.
Result<StoreReply> add(int fd, const StoreRequest& request, const WaitLimit& limit) {
  STRETTO_ASSIGN_OR_RETURN(const auto old, look_up(fd, request, limit));
  if (old) STRETTO_RETURN_IF_ERROR(checked_sum(*old, request.amount).status());
  STRETTO_RETURN_IF_ERROR(
      RequestFrame(TorchRequest::add).text(request.key).number(request.amount).send(fd, limit));
  return read_number(fd, limit);
}

Result<StoreReply> append(int fd, const StoreRequest& request, const WaitLimit& limit) {
  STRETTO_ASSIGN_OR_RETURN(const auto old, look_up(fd, request, limit));
  const std::size_t old_bytes = old ? old->size() : 0;
  STRETTO_RETURN_IF_ERROR(check_appended_bytes(old_bytes + request.value.size()));
  STRETTO_RETURN_IF_ERROR(RequestFrame(TorchRequest::append)
                              .text(request.key)
                              .text(request.value)
                              .then_ping()
                              .send(fd, limit));
  return read_ping(fd, limit);
}

Result<StoreReply> ask_torch(int fd, const StoreRequest& request, const WaitLimit& limit) {
  switch (request.operation) {
    case StoreOperation::set:
      STRETTO_RETURN_IF_ERROR(RequestFrame(TorchRequest::set)
                                  .text(request.key)
                                  .text(request.value)
                                  .then_ping()
                                  .send(fd, limit));
      return read_ping(fd, limit);
    case StoreOperation::get:
      return get(fd, request, limit);
    case StoreOperation::add:
      return add(fd, request, limit);
    case StoreOperation::compare_set:
      return compare_set(fd, request, limit);
    case StoreOperation::wait:
      return wait(fd, request, limit);
    case StoreOperation::check:
      return check(fd, request, limit);
    case StoreOperation::delete_key:
      STRETTO_RETURN_IF_ERROR(
          RequestFrame(TorchRequest::delete_key).text(request.key).send(fd, limit));
      return read_number(fd, limit);
    case StoreOperation::append:
      return append(fd, request, limit);
    case StoreOperation::list_keys:
      return status_of(StatusCode::invalid_argument, "PyTorch's stores do not list their keys");
    case StoreOperation::will:
      return status_of(StatusCode::invalid_argument, "PyTorch's stores keep no wills");
  }
  return status_of(StatusCode::internal, "no such operation of a store");
}

class TorchStore : public StoreClient {
 public:
  explicit TorchStore(const TorchStoreOptions& options)
      : StoreClient({"torchrun's store", options.host, options.port}) {}

 private:
  Status greet(int fd, const WaitLimit& limit) override {
    STRETTO_RETURN_IF_ERROR(
        RequestFrame(TorchRequest::validate).number(kValidationMagic).then_ping().send(fd, limit));
    return read_ping(fd, limit).status();
  }

  Result<StoreReply> exchange(int fd, const StoreRequest& request,
                              const WaitLimit& limit) override {
    return ask_torch(fd, request, limit);
  }
};

}  // namespace

Result<std::unique_ptr<Store>> connect_torch_store(const TorchStoreOptions& options,
                                                   const WaitLimit& limit) {
  auto store = std::make_unique<TorchStore>(options);
  STRETTO_RETURN_IF_ERROR(store->open(limit));
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace stretto::bootstrap
