// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdlib>

namespace stretto::testing {

// Whether tests shall try all their cases, as `./dev test --all` asks. The cases that other runs
// leave out have never shown a failure that the rest did not.
inline bool is_thorough() { return std::getenv("STRETTO_THOROUGH") != nullptr; }

}  // namespace stretto::testing
