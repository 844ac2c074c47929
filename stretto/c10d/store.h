// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "stretto/bootstrap/store.h"

namespace stretto::c10d_backend {

// A store of PyTorch's as one of ours, so that ranks meet where torch.distributed has met, and no
// second port is needed. Waits by looking, up to fifty times a second: all of PyTorch's stores can
// be asked, and a wait of theirs cannot be interrupted.
class Store final : public bootstrap::Store {
 public:
  explicit Store(c10::intrusive_ptr<::c10d::Store> store) : store_(std::move(store)) {}

  std::string describe() const override { return "the store of torch.distributed"; }
  std::string server() const override;
  Result<bootstrap::StoreReply> answer(const bootstrap::StoreRequest& request,
                                       const WaitLimit& limit) override;

 private:
  bootstrap::StoreReply ask(const bootstrap::StoreRequest& request);
  Status wait(const std::string& key, const WaitLimit& limit);

  const c10::intrusive_ptr<::c10d::Store> store_;
};

}  // namespace stretto::c10d_backend
