// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <condition_variable>
#include <mutex>
#include <string>

#include "stretto/bootstrap/store.h"
#include "stretto/bootstrap/store_contents.h"

namespace stretto::bootstrap {

// A store for ranks that are threads of one process. All of them share one object.
class MemoryStore : public Store {
 public:
  std::string describe() const override { return "the memory of this process"; }
  Result<StoreReply> answer(const StoreRequest& request, const WaitLimit& limit) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  StoreContents contents_;
};

}  // namespace stretto::bootstrap
