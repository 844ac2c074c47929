// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "stretto/base/status.h"
#include "stretto/bootstrap/store_request.h"

namespace stretto::bootstrap {

// The sum that `add` makes of the text that is there; invalid_argument as Store::add says.
Result<std::int64_t> checked_sum(std::string_view text, std::int64_t amount);
// Whether `append` may make a value of so many bytes (invalid_argument).
Status check_appended_bytes(std::size_t bytes);

// How many bytes a server holds for its clients, of all kinds, and how many it may. Not thread
// safe.
class ByteBudget {
 public:
  explicit ByteBudget(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Changes an account of `before` bytes to `after`. False, and nothing has changed, if that would
  // exceed the limit; an account that shrinks always may.
  bool change(std::size_t before, std::size_t after) {
    if (after > before && after - before > limit_bytes_ - used_bytes_) return false;
    used_bytes_ += after - before;
    return true;
  }
  std::size_t used_bytes() const { return used_bytes_; }
  std::size_t limit_bytes() const { return limit_bytes_; }

 private:
  std::size_t limit_bytes_;
  std::size_t used_bytes_ = 0;
};

// What a store holds, and what each request means: the one place that knows. Knows nothing of
// waiting, files or sockets. Not thread safe.
class StoreContents {
 public:
  // What an entry takes beside the bytes of its key and value.
  static constexpr std::size_t kEntryBytes = 160;

  // `budget` may have other users as well. Null: no limit.
  explicit StoreContents(std::shared_ptr<ByteBudget> budget = nullptr)
      : budget_(std::move(budget)) {}

  // Empty: a get or wait whose key is not there yet; ask again when it is. The limits of store.h
  // have been checked for the request, not for the values that grow from it. A failure
  // (invalid_argument; refused when the store is full) has changed nothing.
  Result<std::optional<StoreReply>> answer(const StoreRequest& request);

  // Null if the key is absent. Valid until the next request.
  const std::string* find(std::string_view key) const;
  // Grows with every change; equal to an earlier one if nothing has changed since.
  std::uint64_t revision() const { return revision_; }

 private:
  Status put(std::string_view key, std::string value);
  Result<std::optional<StoreReply>> add(const StoreRequest& request);
  Result<std::optional<StoreReply>> compare_set(const StoreRequest& request);
  Result<std::optional<StoreReply>> append(const StoreRequest& request);
  StoreReply list_keys(const StoreRequest& request) const;
  std::int64_t erase(std::string_view key);

  std::shared_ptr<ByteBudget> budget_;
  std::uint64_t revision_ = 0;
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace stretto::bootstrap
