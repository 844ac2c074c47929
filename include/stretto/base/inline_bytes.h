// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

namespace stretto {

// How much of an operation a call does itself. One on buffers of up to so many bytes, those of a
// list all together, is run inside the call that submits it, as far as the other ranks have come.
// Of a larger one, such a call works on no more bytes than that, and on none where a progress
// thread does it.
inline constexpr std::size_t kInlineBytes = 1024 * 1024;

}  // namespace stretto
