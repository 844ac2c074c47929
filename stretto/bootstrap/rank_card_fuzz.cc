// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Whoever can write to the store may say anything about a rank: its card, and why it cannot join.
// What is accepted must be what is written, but for letters that no terminal shall see.
// Sources: rank_card.cc join_failure.cc

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "stretto/base/printable.h"
#include "stretto/bootstrap/join_failure.h"
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
  const Status failure = bootstrap::decode_join_failure(text);
  const Status again = bootstrap::decode_join_failure(bootstrap::encode_join_failure(failure));
  if (!right || failure.ok() || again.message() != failure.message()) std::abort();
  return 0;
}
