// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <string>

#include "stretto/bootstrap/store.h"
#include "stretto/bootstrap/store_page.h"

namespace stretto::bootstrap {

// The part of another store whose keys begin with `prefix`, as a store of its own: keeps apart what
// uses one store. Prefix and key together have the length of a key.
class PrefixStore : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> whole)
      : prefix_(std::move(prefix)), whole_(std::move(whole)) {}

  std::string describe() const override { return whole_->describe(); }
  Result<StoreReply> answer(const StoreRequest& request, const WaitLimit& limit) override {
    const std::string key = prefix_ + std::string(request.key);
    StoreRequest full = request;
    full.key = key;
    const bool lists = request.operation == StoreOperation::list_keys;
    const std::string last = lists && !request.expected.empty()
                                 ? prefix_ + std::string(request.expected)
                                 : std::string(request.expected);
    full.expected = last;
    STRETTO_RETURN_IF_ERROR(check_store_limits(full));
    Result<StoreReply> reply = whole_->answer(full, limit);
    if (lists && reply.ok()) STRETTO_RETURN_IF_ERROR(drop_prefix(*reply));
    return reply;
  }

  Result<std::unique_ptr<StoreWatch>> watch(const std::string& key, const Will& will,
                                            const WaitLimit& limit) override {
    return whole_->watch(prefix_ + key, {will.value, prefix_ + will.revoked_by}, limit);
  }

 private:
  Status drop_prefix(StoreReply& reply) const {
    Result<std::vector<std::string>> keys = keys_of_page(reply.value);
    if (!keys.ok()) return keys.status();
    reply.value.clear();
    for (const std::string& key : *keys) add_to_page(reply.value, key.substr(prefix_.size()));
    return {};
  }

  std::string prefix_;
  std::shared_ptr<Store> whole_;
};

}  // namespace stretto::bootstrap
