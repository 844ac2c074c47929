// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Another process may leave anything on a page that `stretto top` reads. A note is read as it is
// printed, and is fit for a terminal.
// Sources: live_page.cc status_slot.cc

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "stretto/job/live_page.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto::job;
  static StatusSlot slot;
  std::memcpy(static_cast<void*>(&slot), data, std::min(size, sizeof(slot)));
  const auto status = slot.try_read();
  if (!status) return 0;
  const auto printable = [](char c) { return c >= ' ' && c <= '~'; };
  if (!std::ranges::all_of(status->text, printable)) std::abort();
  const auto note = decode_live_note(*status);
  if (!note) return 0;
  const auto again = decode_live_note({encode(note->who, note->pid, note->state), note->written});
  if (!again || again->who.job != note->who.job || again->state.doing != note->state.doing) {
    std::abort();
  }
  return 0;
}
