// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdlib>

namespace stretto::testing {

// Whether tests are to try all that they can, as `./dev test --all` asks for. What others leave out
// has shown nothing that what they try does not show.
inline bool is_thorough() { return std::getenv("STRETTO_THOROUGH") != nullptr; }

}  // namespace stretto::testing
