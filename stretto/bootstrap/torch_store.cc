// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/torch_store.h"

#include <array>
#include <span>

#include "stretto/bootstrap/connection_pool.h"
#include "stretto/bootstrap/little_endian.h"
#include "stretto/bootstrap/socket.h"

namespace stretto::bootstrap {
namespace {

// PyTorch's numbers for its requests; only those used here. Observed on the wire of PyTorch 2.13.
enum class TorchRequest : std::uint8_t { validate = 0, set = 1, get = 3, wait = 6, ping = 13 };
constexpr std::uint32_t kValidationMagic = 0x3c85f7ce;
constexpr std::uint8_t kStopWaiting = 0;
// Comes back from a ping. Any number will do: it only shows that a TCPStore answers.
constexpr std::uint32_t kPingNonce = 0x73747265;

template <class T>
void append(std::string& frame, T value) {
  std::array<std::byte, sizeof(T)> bytes{};
  store_little_endian(bytes.data(), value);
  frame.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void append(std::string& frame, TorchRequest request) {
  append(frame, static_cast<std::uint8_t>(request));
}

void append_text(std::string& frame, std::string_view text) {
  append(frame, static_cast<std::uint64_t>(text.size()));
  frame.append(text);
}

void append_ping(std::string& frame) {
  append(frame, TorchRequest::ping);
  append(frame, kPingNonce);
}

Status send(int fd, std::string_view frame, Deadline deadline) {
  return write_all(fd, std::as_bytes(std::span(frame)), deadline);
}

template <class T>
Result<T> read(int fd, Deadline deadline) {
  std::array<std::byte, sizeof(T)> bytes{};
  STRETTO_RETURN_IF_ERROR(read_exactly(fd, bytes, deadline));
  return load_little_endian<T>(bytes.data());
}

Status read_ping(int fd, Deadline deadline) {
  const Result<std::uint32_t> nonce = read<std::uint32_t>(fd, deadline);
  if (!nonce.ok()) return nonce.status();
  if (nonce.value() == kPingNonce) return {};
  return status_of(StatusCode::protocol, "no TCPStore of PyTorch answers there");
}

Result<FileDescriptor> connect(const TorchStoreOptions& options, Deadline deadline) {
  Result<FileDescriptor> fd = connect_tcp(options.host, options.port, deadline);
  if (!fd.ok()) return fd;
  std::string frame;
  append(frame, TorchRequest::validate);
  append(frame, kValidationMagic);
  append_ping(frame);
  STRETTO_RETURN_IF_ERROR(send(fd->get(), frame, deadline));
  STRETTO_RETURN_IF_ERROR(read_ping(fd->get(), deadline));
  return fd;
}

Status set_value(int fd, std::string_view key, std::string_view value, Deadline deadline) {
  std::string frame;
  append(frame, TorchRequest::set);
  append_text(frame, key);
  append_text(frame, value);
  // A set has no answer of its own.
  append_ping(frame);
  STRETTO_RETURN_IF_ERROR(send(fd, frame, deadline));
  return read_ping(fd, deadline);
}

Result<std::string> get_value(int fd, std::string_view key, Deadline deadline) {
  std::string wait;
  append(wait, TorchRequest::wait);
  append(wait, std::uint64_t{1});
  append_text(wait, key);
  STRETTO_RETURN_IF_ERROR(send(fd, wait, deadline));
  const Result<std::uint8_t> woken = read<std::uint8_t>(fd, deadline);
  if (!woken.ok()) return woken.status();
  if (woken.value() != kStopWaiting) {
    return status_of(StatusCode::protocol, "TCPStore answered a wait with {}", woken.value());
  }
  std::string get;
  append(get, TorchRequest::get);
  append_text(get, key);
  STRETTO_RETURN_IF_ERROR(send(fd, get, deadline));
  const Result<std::uint64_t> length = read<std::uint64_t>(fd, deadline);
  if (!length.ok()) return length.status();
  if (length.value() > kMaxValueBytes) {
    return status_of(StatusCode::protocol,
                     "TCPStore holds a value of {} bytes, at most {} are ours", length.value(),
                     kMaxValueBytes);
  }
  std::string value(length.value(), '\0');
  STRETTO_RETURN_IF_ERROR(read_exactly(fd, std::as_writable_bytes(std::span(value)), deadline));
  return value;
}

class TorchStore : public Store {
 public:
  explicit TorchStore(const TorchStoreOptions& options)
      : place_("torchrun's store at " + format_host_port(options.host, options.port)),
        prefix_(options.prefix),
        pool_([options](Deadline deadline) { return connect(options, deadline); }) {}

  Status open(Deadline deadline) {
    Result<FileDescriptor> first = pool_.take(deadline);
    if (!first.ok()) return first.status().with_context(place_);
    pool_.give_back(std::move(*first));
    return {};
  }

  Status set(std::string_view key, std::string_view value, Deadline deadline) override {
    STRETTO_RETURN_IF_ERROR(check_store_limits(key, value));
    Result<FileDescriptor> connection = pool_.take(deadline);
    Status done = connection.status();
    if (done.ok()) done = set_value(connection->get(), full_key(key), value, deadline);
    if (!done.ok()) return done.with_context(fmt::format("setting \"{}\" in {}", key, place_));
    pool_.give_back(std::move(*connection));
    return {};
  }

  Result<std::string> get(std::string_view key, Deadline deadline) override {
    STRETTO_RETURN_IF_ERROR(check_store_limits(key, {}));
    const std::string doing = fmt::format("waiting for \"{}\" in {}", key, place_);
    Result<FileDescriptor> connection = pool_.take(deadline);
    if (!connection.ok()) return connection.status().with_context(doing);
    Result<std::string> value = get_value(connection->get(), full_key(key), deadline);
    if (!value.ok()) return value.status().with_context(doing);
    pool_.give_back(std::move(*connection));
    return value;
  }

  std::string describe() const override { return place_; }

 private:
  std::string full_key(std::string_view key) const { return prefix_ + std::string(key); }

  std::string place_;
  std::string prefix_;
  ConnectionPool pool_;
};

}  // namespace

Result<std::unique_ptr<Store>> connect_torch_store(const TorchStoreOptions& options,
                                                   Deadline deadline) {
  auto store = std::make_unique<TorchStore>(options);
  STRETTO_RETURN_IF_ERROR(store->open(deadline));
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace stretto::bootstrap
