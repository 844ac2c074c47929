// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What anybody who can write to the store may say about a rank: its card.
// What parse_card() accepts must be what print() makes, but for letters that no terminal shall see.
//
//   clang++ -std=c++20 -fsanitize=fuzzer,address,undefined -I.
//     stretto/bootstrap/{rank_card_fuzz,rank_card}.cc stretto/base/status.cc -lfmt

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "stretto/base/printable.h"
#include "stretto/bootstrap/rank_card.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<bootstrap::RankCard> card = bootstrap::parse_card(text);
  const auto is_same = [&] {
    const std::string printed = bootstrap::print(card.value());
    return std::equal(printed.begin(), printed.end(), text.begin(), text.end(), [](char a, char b) {
      return a == b || a == printable(std::string(1, b))[0];
    });
  };
  const bool right =
      card.ok() ? card.value().pid > 0 && is_same() : card.status().code() == StatusCode::protocol;
  if (!right) std::abort();
  return 0;
}
