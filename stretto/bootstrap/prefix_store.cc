// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/prefix_store.h"

namespace stretto::bootstrap {

Result<StoreReply> PrefixStore::answer(const StoreRequest& request, const WaitLimit& limit) {
  const std::string key = prefix_ + std::string(request.key);
  StoreRequest full = request;
  full.key = key;
  STRETTO_RETURN_IF_ERROR(check_store_limits(full));
  return whole_->answer(full, limit);
}

Result<std::unique_ptr<StoreWatch>> PrefixStore::watch(const std::string& key, const Will& will,
                                                       const WaitLimit& limit) {
  return whole_->watch(prefix_ + key, {will.value, prefix_ + will.revoked_by}, limit);
}

}  // namespace stretto::bootstrap
