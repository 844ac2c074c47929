// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/store.h"

#include <algorithm>

#include "stretto/base/name_in.h"
#include "stretto/bootstrap/store_page.h"

namespace stretto::bootstrap {
namespace {

std::string_view doing(StoreOperation operation) {
  return name_in({"using", "setting", "waiting for", "adding to", "comparing and setting",
                  "waiting for", "looking for", "deleting", "appending to",
                  "listing the keys that begin with", "leaving a will for"},
                 operation, "using");
}

}  // namespace

Status check_store_limits(const StoreRequest& request) {
  const auto wrong_key = [](std::size_t bytes) {
    return status_of(StatusCode::invalid_argument, "a key of the store has 1 to {} bytes, not {}",
                     kMaxKeyBytes, bytes);
  };
  const std::size_t key_bytes = request.key.size();
  const bool lists = request.operation == StoreOperation::list_keys;
  if ((key_bytes == 0 && !lists) || key_bytes > kMaxKeyBytes) return wrong_key(key_bytes);
  // In these two operations, `expected` is a key as well.
  const bool has_second_key = lists || request.operation == StoreOperation::will;
  if (has_second_key && request.expected.size() > kMaxKeyBytes) {
    return wrong_key(request.expected.size());
  }
  const std::size_t value_bytes = std::max(request.value.size(), request.expected.size());
  if (value_bytes > kMaxValueBytes) {
    return status_of(StatusCode::invalid_argument,
                     "a value of the store has at most {} bytes, not {}", kMaxValueBytes,
                     value_bytes);
  }
  return {};
}

Result<StoreReply> Store::ask(const StoreRequest& request, const WaitLimit& limit) {
  Status failure = check_store_limits(request);
  if (failure.ok()) {
    Result<StoreReply> reply = answer(request, limit);
    if (reply.ok()) return reply;
    failure = reply.status();
  }
  return failure.with_context(
      fmt::format("{} \"{}\" in {}", doing(request.operation), request.key, describe()));
}

namespace {

// For stores without notifications.
class PollingWatch : public StoreWatch {
 public:
  PollingWatch(Store& store, std::string key) : store_(store), key_(std::move(key)) {}
  Result<std::optional<std::string>> look() override {
    auto value = store_.look_up(key_, Deadline::after(std::chrono::seconds(1)));
    // A store that does not answer in time, or whose file stays locked, gives no information.
    if (value.status().code() == StatusCode::timeout) return std::optional<std::string>();
    return value;
  }
  Status revoke(const WaitLimit& /*limit*/) override { return {}; }

 private:
  Store& store_;
  const std::string key_;
};

}  // namespace

Result<std::unique_ptr<StoreWatch>> Store::watch(const std::string& key, const Will& /*will*/,
                                                 const WaitLimit& /*limit*/) {
  return std::unique_ptr<StoreWatch>(std::make_unique<PollingWatch>(*this, key));
}

Status Store::set(std::string_view key, std::string_view value, const WaitLimit& limit) {
  return ask({.operation = StoreOperation::set, .key = key, .value = value}, limit).status();
}

Result<std::string> Store::get(std::string_view key, const WaitLimit& limit) {
  STRETTO_ASSIGN_OR_RETURN(auto reply, ask({.operation = StoreOperation::get, .key = key}, limit));
  return std::move(reply.value);
}

Result<std::optional<std::string>> Store::look_up(std::string_view key, const WaitLimit& limit) {
  const std::string name(key);
  STRETTO_ASSIGN_OR_RETURN(bool is_there, check(std::span(&name, 1), limit));
  if (!is_there) return std::optional<std::string>();
  // Another client may delete the key meanwhile, and then get() might wait for ever.
  const WaitLimit while_there(limit.deadline(), [&]() -> Status {
    STRETTO_RETURN_IF_ERROR(limit.look());
    STRETTO_ASSIGN_OR_RETURN(is_there, check(std::span(&name, 1), limit));
    return is_there ? Status() : status_of(StatusCode::aborted, "it has been deleted");
  });
  Result<std::string> value = get(key, while_there);
  if (!is_there) return std::optional<std::string>();
  if (!value.ok()) return value.status();
  return std::optional(std::move(*value));
}

Result<std::int64_t> Store::add(std::string_view key, std::int64_t amount, const WaitLimit& limit) {
  STRETTO_ASSIGN_OR_RETURN(
      auto reply, ask({.operation = StoreOperation::add, .key = key, .amount = amount}, limit));
  return reply.number;
}

Result<std::string> Store::compare_set(std::string_view key, std::string_view expected,
                                       std::string_view desired, const WaitLimit& limit) {
  STRETTO_ASSIGN_OR_RETURN(auto reply, ask({.operation = StoreOperation::compare_set,
                                            .key = key,
                                            .value = desired,
                                            .expected = expected},
                                           limit));
  return std::move(reply.value);
}

Status Store::append(std::string_view key, std::string_view suffix, const WaitLimit& limit) {
  return ask({.operation = StoreOperation::append, .key = key, .value = suffix}, limit).status();
}

Status Store::wait(std::span<const std::string> keys, const WaitLimit& limit) {
  for (const std::string& key : keys) {
    STRETTO_RETURN_IF_ERROR(ask({.operation = StoreOperation::wait, .key = key}, limit).status());
  }
  return {};
}

Result<bool> Store::check(std::span<const std::string> keys, const WaitLimit& limit) {
  for (const std::string& key : keys) {
    STRETTO_ASSIGN_OR_RETURN(auto reply,
                             ask({.operation = StoreOperation::check, .key = key}, limit));
    if (reply.number == 0) return false;
  }
  return true;
}

Result<bool> Store::delete_key(std::string_view key, const WaitLimit& limit) {
  STRETTO_ASSIGN_OR_RETURN(auto reply,
                           ask({.operation = StoreOperation::delete_key, .key = key}, limit));
  return reply.number != 0;
}

Result<std::vector<std::string>> Store::multi_get(std::span<const std::string> keys,
                                                  const WaitLimit& limit) {
  std::vector<std::string> values;
  for (const std::string& key : keys) {
    STRETTO_ASSIGN_OR_RETURN(std::string value, get(key, limit));
    values.push_back(std::move(value));
  }
  return values;
}

Status Store::multi_set(std::span<const std::string> keys, std::span<const std::string> values,
                        const WaitLimit& limit) {
  if (keys.size() != values.size()) {
    return status_of(StatusCode::invalid_argument, "{} values for {} keys of {}", values.size(),
                     keys.size(), describe());
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    STRETTO_RETURN_IF_ERROR(set(keys[i], values[i], limit));
  }
  return {};
}

Result<std::vector<std::string>> Store::list_keys(std::string_view prefix, const WaitLimit& limit) {
  std::vector<std::string> keys;
  while (true) {
    const std::string last = keys.empty() ? std::string() : keys.back();
    const StoreRequest request{
        .operation = StoreOperation::list_keys, .key = prefix, .expected = last};
    STRETTO_ASSIGN_OR_RETURN(auto reply, ask(request, limit));
    STRETTO_ASSIGN_OR_RETURN(std::vector<std::string> page, keys_of_page(reply.value, request));
    if (page.empty()) return keys;
    for (std::string& key : page) keys.push_back(std::move(key));
  }
}

Result<std::int64_t> Store::num_keys(std::string_view prefix, const WaitLimit& limit) {
  STRETTO_ASSIGN_OR_RETURN(auto reply,
                           ask({.operation = StoreOperation::list_keys, .key = prefix}, limit));
  return reply.number;
}

}  // namespace stretto::bootstrap
