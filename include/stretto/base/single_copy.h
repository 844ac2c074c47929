// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>

namespace stretto {

// Whether callers' private memory goes from one process of a host to another by one copy, which the
// kernel makes, instead of two through memory that both have mapped. Results are the same. Of
// several ranks the least holds.
enum class SingleCopy : std::uint8_t {
  off,
  automatic,  // Where it is faster: much memory, in huge pages.
  always,     // Wherever the system allows it.
};

}  // namespace stretto
