// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "stretto/bootstrap/store.h"

namespace stretto::bootstrap {

// A store for ranks that are threads of one process. All of them share one object.
class MemoryStore : public Store {
 public:
  Status set(std::string_view key, std::string_view value, Deadline deadline) override;
  Result<std::string> get(std::string_view key, Deadline deadline) override;
  std::string describe() const override { return "memory of this process"; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace stretto::bootstrap
