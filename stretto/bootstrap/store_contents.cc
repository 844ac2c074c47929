// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/store_contents.h"

#include "stretto/base/parse_number.h"
#include "stretto/bootstrap/store.h"
#include "stretto/bootstrap/store_page.h"

namespace stretto::bootstrap {
namespace {

std::size_t entry_bytes(std::string_view key, std::string_view value) {
  return StoreContents::kEntryBytes + key.size() + value.size();
}

}  // namespace

Result<std::int64_t> checked_sum(std::string_view text, std::int64_t amount) {
  const std::optional<std::int64_t> number = parse_number<std::int64_t>(text);
  if (!number) {
    return status_of(StatusCode::invalid_argument, "what is there ({} bytes) is not a number",
                     text.size());
  }
  std::int64_t sum = 0;
  if (__builtin_add_overflow(*number, amount, &sum)) {
    return status_of(StatusCode::invalid_argument, "{} + {} is no number of 64 bits", *number,
                     amount);
  }
  return sum;
}

Status check_appended_bytes(std::size_t bytes) {
  if (bytes <= kMaxValueBytes) return {};
  return status_of(StatusCode::invalid_argument,
                   "a value of the store has at most {} bytes, this one would have {}",
                   kMaxValueBytes, bytes);
}

Result<std::optional<StoreReply>> StoreContents::answer(const StoreRequest& request) {
  const std::string* value = find(request.key);
  switch (request.operation) {
    case StoreOperation::set:
      STRETTO_RETURN_IF_ERROR(put(request.key, std::string(request.value)));
      return std::optional(StoreReply{});
    case StoreOperation::get:
      return value == nullptr ? std::nullopt : std::optional(StoreReply{.value = *value});
    case StoreOperation::wait:
      return value == nullptr ? std::nullopt : std::optional(StoreReply{});
    case StoreOperation::check:
      return std::optional(StoreReply{.number = value == nullptr ? 0 : 1});
    case StoreOperation::add:
      return add(request);
    case StoreOperation::compare_set:
      return compare_set(request);
    case StoreOperation::append:
      return append(request);
    case StoreOperation::delete_key:
      return std::optional(StoreReply{.number = erase(request.key)});
    case StoreOperation::list_keys:
      return std::optional(list_keys(request));
    case StoreOperation::will:
      return status_of(StatusCode::invalid_argument, "only a server keeps wills");
  }
  return status_of(StatusCode::protocol, "no such operation of a store");
}

const std::string* StoreContents::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

Status StoreContents::put(std::string_view key, std::string value) {
  const std::string* old = find(key);
  const std::size_t old_bytes = old == nullptr ? 0 : entry_bytes(key, *old);
  if (budget_ != nullptr && !budget_->change(old_bytes, entry_bytes(key, value))) {
    return status_of(StatusCode::refused, "the store is full: {} of at most {} bytes",
                     budget_->used_bytes(), budget_->limit_bytes());
  }
  values_.insert_or_assign(std::string(key), std::move(value));
  ++revision_;
  return {};
}

Result<std::optional<StoreReply>> StoreContents::add(const StoreRequest& request) {
  const std::string* value = find(request.key);
  STRETTO_ASSIGN_OR_RETURN(const auto sum,
                           checked_sum(value == nullptr ? "0" : *value, request.amount));
  STRETTO_RETURN_IF_ERROR(put(request.key, std::to_string(sum)));
  return std::optional(StoreReply{.number = sum});
}

Result<std::optional<StoreReply>> StoreContents::compare_set(const StoreRequest& request) {
  const std::string* value = find(request.key);
  if ((value == nullptr ? std::string_view() : *value) != request.expected) {
    return std::optional(StoreReply{.value = value == nullptr ? std::string() : *value});
  }
  STRETTO_RETURN_IF_ERROR(put(request.key, std::string(request.value)));
  return std::optional(StoreReply{.value = std::string(request.value)});
}

Result<std::optional<StoreReply>> StoreContents::append(const StoreRequest& request) {
  const std::string* value = find(request.key);
  std::string longer = value == nullptr ? std::string() : *value;
  longer.append(request.value);
  STRETTO_RETURN_IF_ERROR(check_appended_bytes(longer.size()));
  STRETTO_RETURN_IF_ERROR(put(request.key, std::move(longer)));
  return std::optional(StoreReply{});
}

StoreReply StoreContents::list_keys(const StoreRequest& request) const {
  StoreReply reply;
  bool has_room = true;
  const bool begins = request.expected < request.key;
  for (auto at = begins ? values_.lower_bound(request.key) : values_.upper_bound(request.expected);
       at != values_.end() && at->first.starts_with(request.key); ++at) {
    ++reply.number;
    has_room = has_room && add_to_page(reply.value, at->first);
  }
  return reply;
}

std::int64_t StoreContents::erase(std::string_view key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return 0;
  if (budget_ != nullptr) budget_->change(entry_bytes(key, found->second), 0);
  values_.erase(found);
  ++revision_;
  return 1;
}

}  // namespace stretto::bootstrap
