// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "stretto/kernel/quantize.h"

// One-bit numbers as codec::Extraction has them, made by the host's kernels: for each section of
// `section` elements the signs, and then the scales.
namespace stretto::testing {

// Returns the numbers of `values`. `values` become the residuals: what the numbers leave out.
inline std::vector<std::byte> one_bit_numbers(std::span<float> values, std::size_t section) {
  std::vector<std::byte> numbers;
  for (std::size_t first = 0; first < values.size(); first += section) {
    const std::span part = values.subspan(first, std::min(section, values.size() - first));
    std::vector<std::uint64_t> signs(kernel::one_bit_words(part.size()));
    std::vector<float> scales(kernel::one_bit_blocks(part.size()));
    kernel::quantize_one_bit(part, {}, signs, scales);
    for (const auto bytes : {std::as_bytes(std::span(signs)), std::as_bytes(std::span(scales))}) {
      numbers.insert(numbers.end(), bytes.begin(), bytes.end());
    }
  }
  return numbers;
}

inline void add_one_bit_numbers(std::span<const std::byte> numbers, std::size_t section,
                                std::span<float> sums) {
  for (std::size_t first = 0; first < sums.size(); first += section) {
    const std::span part = sums.subspan(first, std::min(section, sums.size() - first));
    std::vector<std::uint64_t> signs(kernel::one_bit_words(part.size()));
    std::vector<float> scales(kernel::one_bit_blocks(part.size()));
    for (const auto to :
         {std::as_writable_bytes(std::span(signs)), std::as_writable_bytes(std::span(scales))}) {
      std::memcpy(to.data(), numbers.data(), to.size());
      numbers = numbers.subspan(to.size());
    }
    kernel::add_one_bit(signs, scales, part);
  }
}

}  // namespace stretto::testing
