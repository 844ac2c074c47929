// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

namespace stretto {

// Whether at least seven eighths of these bytes lie in huge pages; the ends of a buffer seldom do.
// Memory that has not been touched yet lies in no page.
//
// Asks the kernel (PAGEMAP_SCAN, Linux 6.7), which takes a few microseconds where all pages are of
// one kind. Returns false if the kernel does not tell. Any thread.
bool lies_in_huge_pages(const void* data, std::size_t bytes);

}  // namespace stretto
