// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What a rank may leave on the board that its launcher reads: a note is short, and fit to print.
// Sources: status_board.cc

#include <unistd.h>

#include <cstdlib>

#include "stretto/job/status_board.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto::job;
  constexpr std::size_t kSlots = 2;
  static const StatusBoardReader board = StatusBoardReader::create(kSlots).or_throw();
  const std::size_t bytes = std::min<std::size_t>(size, 512);
  if (::pwrite(board.fd(), data, bytes, 0) != static_cast<ssize_t>(bytes)) std::abort();
  for (std::size_t slot = 0; slot <= kSlots; ++slot) {
    const auto note = board.read(slot);
    if (note && (slot == kSlots || note->text.size() > kStatusTextBytes)) std::abort();
  }
  return 0;
}
