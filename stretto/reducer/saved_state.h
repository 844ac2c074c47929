// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stretto/base/reduce_op.h"

namespace stretto::reducer {

// The saved state of a communication hook on one rank: docs/internals/wire_format.md.
struct SavedState {
  using Values = std::map<std::string, std::vector<float>>;  // By the gradient's name.

  std::uint64_t step = 0;
  std::uint64_t rank = 0;
  std::uint64_t ranks = 0;
  Values residuals = {};
  Values momenta = {};
  Values factors = {};  // And hints of codecs, where to look for the greatest elements.
};

// Key in SavedState::factors for the announced bytes; no gradient has this name.
inline constexpr const char* kAnnounced = " bytes announced";

std::vector<std::byte> print(const SavedState& state);
// Throws InvalidArgument if the bytes are not what print() makes of a state.
SavedState parse(std::span<const std::byte> bytes);

// The printed states of several hooks, by name, and such a list as bytes.
using SavedStates = std::map<std::string, std::vector<std::byte>>;
std::vector<std::byte> print(const SavedStates& states);
// Throws InvalidArgument if the bytes are not what print() makes of a list. Does not parse the
// states in it.
SavedStates parse_states(std::span<const std::byte> bytes);

// Prints the state of a rank, and which part of each gradient (or none) it is for: `place`.
std::vector<std::byte> print_at(const std::string& place, std::vector<std::byte> state);
// The state for a rank at `place`; an empty place is all of each gradient. If the state was printed
// for another place, its data of gradients is dropped, with a warning. Throws InvalidArgument if
// the bytes are not a printed state.
std::vector<std::byte> state_at(const std::string& place, std::span<const std::byte> bytes);
// Throws InvalidArgument unless the state was saved by this rank of as many ranks, or has no rank
// yet; also if `knows` returns false for all gradients that have residuals, since the state is then
// of another model. If it returns false for some, rank 0 logs a warning.
void check_compressed(const SavedState& state, int rank, int ranks,
                      const std::function<bool(const std::string& name)>& knows);

// See CompressedReduction::redistribute(). Each rank gets rank 0's factors.
std::vector<std::vector<std::byte>> redistribute(std::span<const std::vector<std::byte>> states,
                                                 std::size_t ranks, ReduceOp op);

// The values of a gradient; null if there are none. Throws InvalidArgument if their number is not
// `count`.
const std::vector<float>* find(const SavedState::Values& values, const std::string& name,
                               std::size_t count);

}  // namespace stretto::reducer
