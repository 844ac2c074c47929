// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>
#include <string>

namespace stretto {

// A source of environment variables. Library code takes one as a parameter; only join() and the
// tools pass the real environment, so that tests can pass their own.
class Environment {
 public:
  virtual ~Environment() = default;
  // Empty if the variable is not set. A variable set to "" counts as not set.
  virtual std::optional<std::string> get(const std::string& variable) const = 0;
};

// The environment of this process.
const Environment& process_environment();

}  // namespace stretto
