// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/store_queue.h"

#include <fmt/format.h>

namespace stretto::bootstrap {

StoreQueue::StoreQueue(std::shared_ptr<Store> store, std::string name)
    : store_(std::move(store)), name_(std::move(name)) {}

std::string StoreQueue::key_of(std::int64_t number) const {
  return fmt::format("{}/{}", name_, number);
}

Status StoreQueue::push(std::string_view value, Deadline deadline) {
  const auto pushed = store_->add(name_ + "/pushed", 1, deadline);
  if (!pushed.ok()) return pushed.status();
  return store_->set(key_of(pushed.value() - 1), value, deadline);
}

Result<std::string> StoreQueue::pop(Deadline deadline) {
  const auto popped = store_->add(name_ + "/popped", 1, deadline);
  if (!popped.ok()) return popped.status();
  const std::string key = key_of(popped.value() - 1);
  Result<std::string> value = store_->get(key, deadline);
  if (!value.ok()) return value;
  // It is this rank's alone, so nobody else looks for it.
  if (const auto deleted = store_->delete_key(key, deadline); !deleted.ok()) {
    return deleted.status();
  }
  return value;
}

Result<std::int64_t> StoreQueue::length(Deadline deadline) {
  const auto popped = store_->add(name_ + "/popped", 0, deadline);
  if (!popped.ok()) return popped.status();
  const auto pushed = store_->add(name_ + "/pushed", 0, deadline);
  if (!pushed.ok()) return pushed.status();
  return pushed.value() - popped.value();
}

}  // namespace stretto::bootstrap
