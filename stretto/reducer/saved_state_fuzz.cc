// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Bytes in place of the saved state of a communication hook: they are refused, or are what would be
// saved. The checksum is repaired, because hardly anything would get past it otherwise.
// Sources: saved_state.cc

#include <cstdlib>
#include <cstring>

#include "stretto/base/content_hash.h"
#include "stretto/base/error.h"
#include "stretto/reducer/saved_state.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto::reducer;
  const auto bytes = std::as_bytes(std::span(data, size));
  std::vector<std::byte> state(bytes.begin(), bytes.end());
  const std::uint64_t sum = stretto::content_hash(state);
  state.resize(size + sizeof(sum));
  std::memcpy(state.data() + size, &sum, sizeof(sum));
  try {
    const SavedStates states = parse_states(state);
    if (parse_states(print(states)) != states) std::abort();
  } catch (const stretto::InvalidArgument&) {
    // The bytes may still be a state of the other kind.
  }
  try {
    const SavedState parsed = parse(state);
    if (parse(print(parsed)).residuals.size() != parsed.residuals.size()) std::abort();
    (void)redistribute({&state, 1}, 2, stretto::ReduceOp::mean);
  } catch (const stretto::InvalidArgument&) {
    return 0;
  }
  return 0;
}
