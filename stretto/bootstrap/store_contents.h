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

// The sum of a stored text and `amount`. Fails with invalid_argument like Store::add().
Result<std::int64_t> checked_sum(std::string_view text, std::int64_t amount);
// Fails with invalid_argument if Store::append() may not make a value of `bytes` bytes.
Status check_appended_bytes(std::size_t bytes);

// Counts the bytes of all kinds that a server holds for its clients, and limits them. Not thread
// safe.
class ByteBudget {
 public:
  explicit ByteBudget(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Changes an account of `before` bytes to `after`. Returns false, and changes nothing, if that
  // would exceed the limit; an account may always shrink.
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

// The contents of a store, and the only implementation of what each request means. It does not
// wait, and has no files or sockets. Not thread safe.
class StoreContents {
 public:
  // Bytes charged for an entry besides those of its key and value.
  static constexpr std::size_t kEntryBytes = 160;

  // `budget` may be shared with other users. Null: no limit.
  explicit StoreContents(std::shared_ptr<ByteBudget> budget = nullptr)
      : budget_(std::move(budget)) {}

  // Empty for a get or wait whose key is absent: ask again when it is set. The caller has checked
  // the limits of store.h for the request; this checks them for values that grow by it. Fails with
  // invalid_argument, or with refused if the store is full, and has then changed nothing.
  Result<std::optional<StoreReply>> answer(const StoreRequest& request);

  // Null if the key is absent. Valid until the next request.
  const std::string* find(std::string_view key) const;
  // Grows with every change.
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
