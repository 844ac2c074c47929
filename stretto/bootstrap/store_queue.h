// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "stretto/bootstrap/store.h"

namespace stretto::bootstrap {

// A queue of values in a store, first in, first out, for any number of ranks at either end: work
// that whoever is free takes. Made of the keys NAME/pushed, NAME/popped and NAME/0, NAME/1, ..., so
// it works on every store; NAME leaves 24 bytes of a key's length for them.
//
// Thread safe, as the store is. Operations block for at most their deadline. A place in the queue
// is taken before its value is waited for, so after a pop that has timed out one value stays
// untaken: whoever cannot wait asks length() first, or gives up for good.
class StoreQueue {
 public:
  StoreQueue(std::shared_ptr<Store> store, std::string name);

  Status push(std::string_view value, Deadline deadline);
  // Waits until there is a value, and takes it: no other pop gets it.
  Result<std::string> pop(Deadline deadline);
  // Values that nobody has taken, or waits for; below 0: so many pops wait.
  Result<std::int64_t> length(Deadline deadline);

 private:
  std::string key_of(std::int64_t number) const;

  std::shared_ptr<Store> store_;
  std::string name_;
};

}  // namespace stretto::bootstrap
