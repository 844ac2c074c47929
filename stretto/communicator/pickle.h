// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace stretto::communicator {

// The value in Python's pickle format (protocol 2): dictionaries, lists, strings and numbers. Whole
// numbers beyond 64 bits with a sign do not occur.
std::string pickled(const nlohmann::json& value);

}  // namespace stretto::communicator
