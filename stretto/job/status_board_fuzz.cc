// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A rank may leave anything on the board that its launcher and the other ranks read. A note is
// short, and fit to print.
// Sources: status_board.cc status_slot.cc

#include <unistd.h>

#include <cstdlib>

#include "stretto/job/status_board.h"
#include "tests/support/fake_environment.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto::job;
  constexpr int kRanks = 2;
  static const LauncherBoard board(kRanks, kRanks);
  static const StatusBoard of_rank =
      StatusBoard::open(stretto::FakeEnvironment({{"STRETTO_STATUS_FD", std::to_string(board.fd())},
                                                  {"STRETTO_LOCAL_RANK", "0"},
                                                  {"STRETTO_RANK", "0"},
                                                  {"STRETTO_SIZE", std::to_string(kRanks)}}),
                        0, kRanks);
  const std::size_t bytes = std::min<std::size_t>(size, 1024);
  if (::pwrite(board.fd(), data, bytes, 0) != static_cast<ssize_t>(bytes)) std::abort();
  for (int rank = 0; rank <= kRanks; ++rank) {
    const auto note = board.read(rank);
    if (note && (rank == kRanks || note->text.size() > kStatusTextBytes)) std::abort();
    const auto obituary = of_rank.find_obituary(rank);
    if (obituary && (rank == kRanks || obituary->size() > kStatusTextBytes)) std::abort();
  }
  return 0;
}
