// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

namespace stretto {

// Whether these bytes of this process lie in huge pages, but for an eighth of them at most: the
// ends of a buffer seldom do. Memory that has not been touched yet lies in no page.
//
// Asks the kernel (PAGEMAP_SCAN, Linux 6.7), which takes a few microseconds where all pages are of
// one kind. False where it does not tell. Any thread.
bool lies_in_huge_pages(const void* data, std::size_t bytes);

}  // namespace stretto
