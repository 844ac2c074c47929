// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/prefix_store.h"

#include "stretto/bootstrap/store_page.h"

namespace stretto::bootstrap {

Result<StoreReply> PrefixStore::answer(const StoreRequest& request, const WaitLimit& limit) {
  const std::string key = prefix_ + std::string(request.key);
  StoreRequest full = request;
  full.key = key;
  const bool lists = request.operation == StoreOperation::list_keys;
  // Also for the first page, to skip a key that equals the prefix: it would have no name here.
  const std::string last = (lists ? prefix_ : "") + std::string(request.expected);
  full.expected = last;
  STRETTO_RETURN_IF_ERROR(check_store_limits(full));
  Result<StoreReply> reply = whole_->answer(full, limit);
  if (!lists || !reply.ok()) return reply;
  STRETTO_ASSIGN_OR_RETURN(std::vector<std::string> keys, keys_of_page(reply->value, full));
  reply->value.clear();
  for (const std::string& found : keys) add_to_page(reply->value, found.substr(prefix_.size()));
  return reply;
}

Result<std::vector<std::string>> PrefixStore::multi_get(std::span<const std::string> keys,
                                                        const WaitLimit& limit) {
  std::vector<std::string> full;
  for (const std::string& key : keys) {
    STRETTO_RETURN_IF_ERROR(check_store_limits({.operation = StoreOperation::get, .key = key}));
    full.push_back(prefix_ + key);
  }
  return whole_->multi_get(full, limit);
}

Result<std::unique_ptr<StoreWatch>> PrefixStore::watch(const std::string& key, const Will& will,
                                                       const WaitLimit& limit) {
  return whole_->watch(prefix_ + key, {will.value, prefix_ + will.revoked_by}, limit);
}

}  // namespace stretto::bootstrap
