// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

namespace stretto {

// How much of an operation the call that submits it does. An operation on buffers of up to this
// many bytes (those of a list, all together) is run in the call, as far as the other ranks have
// come. Of a larger operation, the call works on no more than this many bytes, and on none if there
// is a progress thread to do it.
inline constexpr std::size_t kInlineBytes = 1024 * 1024;

}  // namespace stretto
