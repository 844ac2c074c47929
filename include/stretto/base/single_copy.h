// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>

namespace stretto {

// Whether private memory goes from one process of a host to another by one copy, which the kernel
// makes (process_vm_readv), instead of two copies through mapped memory. Results are the same. If
// ranks have different values, the lowest holds.
enum class SingleCopy : std::uint8_t {
  off,
  automatic,  // Where it is faster: for much memory in huge pages.
  always,     // Wherever the system allows it.
};

}  // namespace stretto
