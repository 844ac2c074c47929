// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/c10d/stores.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "stretto/bootstrap/host_port.h"
#include "stretto/bootstrap/prefix_store.h"
#include "stretto/c10d/errors.h"
#include "stretto/c10d/work.h"

namespace stretto::c10d_backend {
namespace {

using bootstrap::StoreOperation;
using bootstrap::StoreReply;
using bootstrap::StoreRequest;

std::vector<uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

// Finds out what PyTorch puts before the keys of a part of a store: only a subclass may ask for it.
class Prefix final : public ::c10d::PrefixStore {
 public:
  static std::string of(PrefixStore& store) { return (store.*&Prefix::joinKey)(""); }
};

// Waits by looking, at first every millisecond and later every 20 ms: PyTorch's own waits cannot be
// interrupted, but all its stores can be asked.
class FromTorch final : public bootstrap::Store {
 public:
  explicit FromTorch(c10::intrusive_ptr<::c10d::Store> store) : store_(std::move(store)) {}

  std::string describe() const override { return "the store of torch.distributed"; }
  std::string server() const override { return tcp_server_of(store_); }
  Result<bootstrap::StoreReply> answer(const bootstrap::StoreRequest& request,
                                       const WaitLimit& limit) override;

 private:
  Result<bootstrap::StoreReply> ask(const bootstrap::StoreRequest& request, const WaitLimit& limit);
  Result<bootstrap::StoreReply> compare_set(const bootstrap::StoreRequest& request,
                                            const WaitLimit& limit);
  Status wait(const std::string& key, const WaitLimit& limit);

  const c10::intrusive_ptr<::c10d::Store> store_;
};

Status FromTorch::wait(const std::string& key, const WaitLimit& limit) {
  Duration nap = std::chrono::milliseconds(1);
  while (!store_->check({key})) {
    STRETTO_RETURN_IF_ERROR(limit.look());
    if (limit.passed()) return status_of(StatusCode::timeout, "nobody has set \"{}\"", key);
    std::this_thread::sleep_for(std::min(nap, limit.nap()));
    nap = std::min<Duration>(nap * 2, std::chrono::milliseconds(20));
  }
  return {};
}

Result<StoreReply> FromTorch::compare_set(const StoreRequest& request, const WaitLimit& limit) {
  const std::string key(request.key);
  try {
    std::string now =
        text_of(store_->compareSet(key, bytes_of(request.expected), bytes_of(request.value)));
    // For an absent key, PyTorch's stores return `expected`, as if that were there.
    const bool doubtful = !request.expected.empty() && now == request.expected;
    if (doubtful && !store_->check({key})) now.clear();
    return StoreReply{.value = std::move(now)};
  } catch (const c10::DistError&) {
    throw;  // A store of PyTorch's cannot be reached.
  } catch (const c10::Error&) {
    if (!request.expected.empty()) throw;
  }
  // A program's own store that is written in Python has no compareSet(): the first rank sets the
  // key.
  if (!store_->check({key}) && store_->add(key + "/claims", 1) == 1) {
    store_->set(key, bytes_of(request.value));
  } else {
    STRETTO_RETURN_IF_ERROR(wait(key, limit));
  }
  return StoreReply{.value = text_of(store_->get(key))};
}

// The operations that join() needs.
Result<StoreReply> FromTorch::ask(const StoreRequest& request, const WaitLimit& limit) {
  const std::string key(request.key);
  switch (request.operation) {
    case StoreOperation::set:
      store_->set(key, bytes_of(request.value));
      return StoreReply();
    case StoreOperation::get:
      return StoreReply{.value = text_of(store_->get(key))};
    case StoreOperation::add:
      return StoreReply{.number = store_->add(key, request.amount)};
    case StoreOperation::compare_set:
      return compare_set(request, limit);
    case StoreOperation::wait:
      return StoreReply();
    case StoreOperation::check:
      return StoreReply{.number = store_->check({key}) ? 1 : 0};
    default:
      return status_of(StatusCode::invalid_argument,
                       "PyTorch's stores do not list their keys and keep no wills");
  }
}

Result<StoreReply> FromTorch::answer(const StoreRequest& request, const WaitLimit& limit) {
  try {
    if (request.operation == StoreOperation::get || request.operation == StoreOperation::wait) {
      STRETTO_RETURN_IF_ERROR(wait(std::string(request.key), limit));
    }
    return ask(request, limit);
  } catch (const c10::Error& error) {
    return Status(StatusCode::peer_lost, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return Status(StatusCode::peer_lost, error.what());
  }
}

void expect_ok(const Status& status) {
  if (status.ok()) return;
  const std::string text(status.message());
  if (status.code() == StatusCode::timeout) C10_THROW_ERROR(DistStoreError, text);
  throw_for_torch(status);
}

template <class T>
T value_of(Result<T> result) {
  expect_ok(result.status());
  return std::move(*result);
}

}  // namespace

c10::intrusive_ptr<::c10d::Store> whole_of(const c10::intrusive_ptr<::c10d::Store>& store) {
  auto* const part = dynamic_cast<::c10d::PrefixStore*>(store.get());
  return part == nullptr ? store : part->getUnderlyingNonPrefixStore();
}

std::string tcp_server_of(const c10::intrusive_ptr<::c10d::Store>& store) {
  const c10::intrusive_ptr<::c10d::Store> whole = whole_of(store);
  const auto* const tcp = dynamic_cast<const ::c10d::TCPStore*>(whole.get());
  return tcp == nullptr ? std::string()
                        : bootstrap::format_host_port(tcp->getHost(), tcp->getPort());
}

std::shared_ptr<bootstrap::Store> connect_tcp_store(const std::string& server, Duration timeout) {
  const bootstrap::HostPort place = bootstrap::parse_host_port(server).or_throw();
  ::c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(place.port);
  options.timeout = std::chrono::ceil<std::chrono::milliseconds>(timeout);
  try {
    return std::make_shared<FromTorch>(c10::make_intrusive<::c10d::TCPStore>(place.host, options));
  } catch (const c10::Error& error) {
    throw PeerLost(status_of(StatusCode::peer_lost, "the TCPStore at {} cannot be reached: {}",
                             server, error.what_without_backtrace()));
  }
}

std::shared_ptr<bootstrap::Store> store_of(const c10::intrusive_ptr<::c10d::Store>& store) {
  if (const auto* const ours = dynamic_cast<const GenerationStore*>(store.get())) {
    return ours->store();
  }
  auto* const part = dynamic_cast<::c10d::PrefixStore*>(store.get());
  if (part == nullptr ||
      dynamic_cast<GenerationStore*>(part->getUnderlyingNonPrefixStore().get()) == nullptr) {
    return std::make_shared<FromTorch>(store);
  }
  return std::make_shared<bootstrap::PrefixStore>(Prefix::of(*part),
                                                  store_of(part->getUnderlyingStore()));
}

std::unique_ptr<Communicator> take_communicator(::c10d::Store& store) {
  if (auto* const ours = dynamic_cast<GenerationStore*>(&store)) return ours->take_communicator();
  auto* const part = dynamic_cast<::c10d::PrefixStore*>(&store);
  return part == nullptr ? nullptr : take_communicator(*part->getUnderlyingStore());
}

c10::intrusive_ptr<::c10d::Store> GenerationStore::clone() {
  auto copy = c10::make_intrusive<GenerationStore>(store_, nullptr);
  copy->setTimeout(timeout_);
  return copy;
}

void GenerationStore::set(const std::string& key, const Bytes& value) {
  expect_ok(store_->set(key, text_of(value), deadline_of(timeout_)));
}

GenerationStore::Bytes GenerationStore::compareSet(const std::string& key, const Bytes& expected,
                                                   const Bytes& desired) {
  const std::string now = value_of(
      store_->compare_set(key, text_of(expected), text_of(desired), deadline_of(timeout_)));
  // For an absent key, PyTorch's stores return `expected`, as if that were there.
  return now.empty() && !expected.empty() && !check({key}) ? expected : bytes_of(now);
}

GenerationStore::Bytes GenerationStore::get(const std::string& key) {
  return bytes_of(value_of(store_->get(key, deadline_of(timeout_))));
}

int64_t GenerationStore::add(const std::string& key, int64_t amount) {
  return value_of(store_->add(key, amount, deadline_of(timeout_)));
}

bool GenerationStore::deleteKey(const std::string& key) {
  return value_of(store_->delete_key(key, deadline_of(timeout_)));
}

bool GenerationStore::check(const Keys& keys) {
  return value_of(store_->check(keys, deadline_of(timeout_)));
}

int64_t GenerationStore::getNumKeys() {
  return value_of(store_->num_keys("", deadline_of(timeout_)));
}

void GenerationStore::wait(const Keys& keys, const std::chrono::milliseconds& timeout) {
  expect_ok(store_->wait(keys, deadline_of(timeout)));
}

void GenerationStore::append(const std::string& key, const Bytes& value) {
  expect_ok(store_->append(key, text_of(value), deadline_of(timeout_)));
}

std::vector<GenerationStore::Bytes> GenerationStore::multiGet(const Keys& keys) {
  std::vector<Bytes> values;
  for (const std::string& value : value_of(store_->multi_get(keys, deadline_of(timeout_)))) {
    values.push_back(bytes_of(value));
  }
  return values;
}

void GenerationStore::multiSet(const Keys& keys, const std::vector<Bytes>& values) {
  std::vector<std::string> texts;
  for (const Bytes& value : values) texts.push_back(text_of(value));
  expect_ok(store_->multi_set(keys, texts, deadline_of(timeout_)));
}

GenerationStore::Keys GenerationStore::listKeys() {
  return value_of(store_->list_keys("", deadline_of(timeout_)));
}

}  // namespace stretto::c10d_backend
