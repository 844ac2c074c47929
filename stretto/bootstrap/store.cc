// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/store.h"

#include <algorithm>

namespace stretto::bootstrap {
namespace {

std::string_view doing(StoreOperation operation) {
  switch (operation) {
    case StoreOperation::set:
      return "setting";
    case StoreOperation::get:
    case StoreOperation::wait:
      return "waiting for";
    case StoreOperation::add:
      return "adding to";
    case StoreOperation::compare_set:
      return "comparing and setting";
    case StoreOperation::check:
      return "looking for";
    case StoreOperation::delete_key:
      return "deleting";
    case StoreOperation::append:
      return "appending to";
  }
  return "using";
}

}  // namespace

Status check_store_limits(const StoreRequest& request) {
  const std::size_t key_bytes = request.key.size();
  if (key_bytes == 0 || key_bytes > kMaxKeyBytes) {
    return status_of(StatusCode::invalid_argument, "a key of the store has 1 to {} bytes, not {}",
                     kMaxKeyBytes, key_bytes);
  }
  const std::size_t value_bytes = std::max(request.value.size(), request.expected.size());
  if (value_bytes > kMaxValueBytes) {
    return status_of(StatusCode::invalid_argument,
                     "a value of the store has at most {} bytes, not {}", kMaxValueBytes,
                     value_bytes);
  }
  return {};
}

Result<StoreReply> Store::ask(const StoreRequest& request, Deadline deadline) {
  Status failure = check_store_limits(request);
  if (failure.ok()) {
    Result<StoreReply> reply = answer(request, deadline);
    if (reply.ok()) return reply;
    failure = reply.status();
  }
  return failure.with_context(
      fmt::format("{} \"{}\" in {}", doing(request.operation), request.key, describe()));
}

Status Store::set(std::string_view key, std::string_view value, Deadline deadline) {
  return ask({.operation = StoreOperation::set, .key = key, .value = value}, deadline).status();
}

Result<std::string> Store::get(std::string_view key, Deadline deadline) {
  Result<StoreReply> reply = ask({.operation = StoreOperation::get, .key = key}, deadline);
  if (!reply.ok()) return reply.status();
  return std::move(reply->value);
}

Result<std::int64_t> Store::add(std::string_view key, std::int64_t amount, Deadline deadline) {
  Result<StoreReply> reply =
      ask({.operation = StoreOperation::add, .key = key, .amount = amount}, deadline);
  if (!reply.ok()) return reply.status();
  return reply->number;
}

Result<std::string> Store::compare_set(std::string_view key, std::string_view expected,
                                       std::string_view desired, Deadline deadline) {
  Result<StoreReply> reply = ask({.operation = StoreOperation::compare_set,
                                  .key = key,
                                  .value = desired,
                                  .expected = expected},
                                 deadline);
  if (!reply.ok()) return reply.status();
  return std::move(reply->value);
}

Status Store::append(std::string_view key, std::string_view suffix, Deadline deadline) {
  return ask({.operation = StoreOperation::append, .key = key, .value = suffix}, deadline).status();
}

Status Store::wait(std::span<const std::string> keys, Deadline deadline) {
  for (const std::string& key : keys) {
    STRETTO_RETURN_IF_ERROR(
        ask({.operation = StoreOperation::wait, .key = key}, deadline).status());
  }
  return {};
}

Result<bool> Store::check(std::span<const std::string> keys, Deadline deadline) {
  for (const std::string& key : keys) {
    Result<StoreReply> reply = ask({.operation = StoreOperation::check, .key = key}, deadline);
    if (!reply.ok()) return reply.status();
    if (reply->number == 0) return false;
  }
  return true;
}

Result<bool> Store::delete_key(std::string_view key, Deadline deadline) {
  Result<StoreReply> reply = ask({.operation = StoreOperation::delete_key, .key = key}, deadline);
  if (!reply.ok()) return reply.status();
  return reply->number != 0;
}

}  // namespace stretto::bootstrap
