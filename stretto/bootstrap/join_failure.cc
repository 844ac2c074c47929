// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/join_failure.h"

#include <algorithm>
#include <array>
#include <optional>

#include "stretto/base/parse_number.h"
#include "stretto/base/printable.h"
#include "stretto/base/take_word.h"

namespace stretto::bootstrap {
namespace {

constexpr std::size_t kTextBytesMax = 2048;
constexpr std::array kTold = {StatusCode::refused, StatusCode::mismatch, StatusCode::peer_lost,
                              StatusCode::timeout};

}  // namespace

// Three lines: "peer lost", "3", "rank 3 (node04 pid 8812) ended ..."; a rank of -1 stands for
// none.
std::string encode_join_failure(const Status& failure) {
  const int rank = failure.rank() ? failure.rank()->value() : -1;
  return fmt::format("{}\n{}\n{}", name(failure.code()), rank,
                     failure.message().substr(0, kTextBytesMax));
}

Status decode_join_failure(std::string_view text) {
  const std::string_view code_name = take_word(text, '\n');
  StatusCode code = StatusCode::aborted;
  for (const StatusCode told : kTold) {
    if (name(told) == code_name) code = told;
  }
  const int rank = parse_number<int>(take_word(text, '\n')).value_or(-1);
  return {code, printable(std::string(text.substr(0, kTextBytesMax))),
          rank < 0 ? std::nullopt : std::optional<Rank>(rank)};
}

}  // namespace stretto::bootstrap
