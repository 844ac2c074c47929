// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <utility>

namespace stretto {

// Calls `function`, which must not throw, when the scope is left, by an exception as well.
template <class Function>
class [[nodiscard]] ScopeExit {
 public:
  explicit ScopeExit(Function function) : function_(std::move(function)) {}
  ~ScopeExit() { function_(); }
  ScopeExit(const ScopeExit&) = delete;
  ScopeExit& operator=(const ScopeExit&) = delete;

 private:
  Function function_;
};

}  // namespace stretto
