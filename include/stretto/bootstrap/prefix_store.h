// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <string>

#include "stretto/bootstrap/store.h"

namespace stretto::bootstrap {

// The part of another store whose keys begin with `prefix`, as a store of its own: so several users
// of one store do not collide. Prefix and key together have at most kMaxKeyBytes bytes.
class PrefixStore : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> whole)
      : prefix_(std::move(prefix)), whole_(std::move(whole)) {}

  std::string describe() const override { return whole_->describe(); }
  std::string server() const override { return whole_->server(); }
  Result<StoreReply> answer(const StoreRequest& request, const WaitLimit& limit) override;
  Result<std::vector<std::string>> multi_get(std::span<const std::string> keys,
                                             const WaitLimit& limit) override;
  Result<std::unique_ptr<StoreWatch>> watch(const std::string& key, const Will& will,
                                            const WaitLimit& limit) override;

 private:
  std::string prefix_;
  std::shared_ptr<Store> whole_;
};

}  // namespace stretto::bootstrap
