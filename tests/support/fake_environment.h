// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "stretto/base/environment.h"

namespace stretto {

using Variables = std::map<std::string, std::string>;

// An environment with these variables and no others.
class FakeEnvironment : public Environment {
 public:
  explicit FakeEnvironment(Variables variables) : variables_(std::move(variables)) {}
  std::optional<std::string> get(const std::string& variable) const override {
    const auto found = variables_.find(variable);
    return found == variables_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  Variables variables_;
};

}  // namespace stretto
