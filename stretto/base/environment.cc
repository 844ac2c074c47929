// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/environment.h"

#include <cstdlib>

namespace stretto {
namespace {

class ProcessEnvironment : public Environment {
 public:
  std::optional<std::string> get(const std::string& variable) const override {
    const char* value = std::getenv(variable.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return std::string(value);
  }
};

}  // namespace

const Environment& process_environment() {
  static const ProcessEnvironment environment;
  return environment;
}

}  // namespace stretto
