// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <string>

#include "stretto/bootstrap/store.h"

namespace stretto::bootstrap {

// A store for ranks that are threads of one process. All of them share one object.
class MemoryStore : public Store {
 public:
  MemoryStore();
  ~MemoryStore() override;
  std::string describe() const override { return "the memory of this process"; }
  Result<StoreReply> answer(const StoreRequest& request, const WaitLimit& limit) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stretto::bootstrap
